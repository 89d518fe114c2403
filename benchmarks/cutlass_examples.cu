// What benchmarks/cutlass_examples.py compiles behind the declarations of an example of CUTLASS, and behind those of the farm's kernel
// in `of_farm`: entries that launch the example's kernel on operands that are given, as the example's own `run` does.
//
// Definitions, besides those of gemm3x_kinds.cu for the farm's kernel:
//   GEMM   the example's class
//   FUSED  1 where its epilogue has factors of A, B, C and D
// A problem in the example's terms: the left operand is [m,k], the right one [n,k]. Of groups every address is that of a table on
// the card, with an element for each group.
struct Given {
  std::int64_t m, n, k;
  void *left, *right, *d, *factors_left, *factors_right;
  std::int64_t factor_k;  // elements along k that share a factor of the left operand
  std::int64_t groups;
  void *extents, *leading_left, *leading_right, *leading_d;
};

using Kernel = GEMM::GemmKernel;

// Whether the example's main loop, epilogue and scheduler are the farm's.
ENTRY int const example_same[];
int const example_same[] = {cute::is_same_v<Kernel::CollectiveMainloop, of_farm::Kernel::CollectiveMainloop>,
                            cute::is_same_v<Kernel::CollectiveEpilogue, of_farm::Kernel::CollectiveEpilogue>,
                            cute::is_same_v<Kernel::TileScheduler, of_farm::Kernel::TileScheduler>};

template <typename Pointer>
static void place(Pointer &pointer, void *at) {
  pointer = reinterpret_cast<Pointer>(at);
}

static GEMM::Arguments arguments_of(Given const &given) {
  typename GEMM::Arguments made{};
  auto &mainloop = made.mainloop;
  auto &epilogue = made.epilogue;
  place(mainloop.ptr_A, given.left);
  place(mainloop.ptr_B, given.right);
  place(epilogue.ptr_C, given.d);
  place(epilogue.ptr_D, given.d);
  int const m = int(given.m), n = int(given.n), k = int(given.k);
#if GROUPED
  made.mode = cutlass::gemm::GemmUniversalMode::kGrouped;
  made.problem_shape.num_groups = int(given.groups);
  place(made.problem_shape.problem_shapes, given.extents);
  place(mainloop.dA, given.leading_left);
  place(mainloop.dB, given.leading_right);
  place(epilogue.dC, given.leading_d);
  place(epilogue.dD, given.leading_d);
  static_assert(sizeof(*mainloop.dA) == 8 && sizeof(*mainloop.dB) == 8 && sizeof(*epilogue.dD) == 8, "strides are one number");
  made.hw_info = cutlass::KernelHardwareInfo::make_kernel_hardware_info<Kernel>(0);
#else
  made.mode = cutlass::gemm::GemmUniversalMode::kGemm;
  made.problem_shape = cute::make_shape(m, n, k, 1);
  mainloop.dA = cutlass::make_cute_packed_stride(typename Kernel::StrideA{}, cute::make_shape(m, k, 1));
  mainloop.dB = cutlass::make_cute_packed_stride(typename Kernel::StrideB{}, cute::make_shape(n, k, 1));
  epilogue.dC = cutlass::make_cute_packed_stride(typename Kernel::StrideC{}, cute::make_shape(m, n, 1));
  epilogue.dD = cutlass::make_cute_packed_stride(typename Kernel::StrideD{}, cute::make_shape(m, n, 1));
#endif
#if NARROW == 2
  place(mainloop.ptr_S, given.factors_left);
  mainloop.group_size = int(given.factor_k);
  int const along = cutlass::ceil_div(k, int(given.factor_k));
  mainloop.dS = cutlass::make_cute_packed_stride(decltype(mainloop.dS){}, cute::make_shape(m, along, 1));
#elif SCALE == 3
  place(mainloop.ptr_SFA, given.factors_left);
  place(mainloop.ptr_SFB, given.factors_right);
#if !GROUPED
  mainloop.layout_SFA = ScaleConfig::tile_atom_to_shape_SFA(cute::make_shape(m, n, k, 1));
  mainloop.layout_SFB = ScaleConfig::tile_atom_to_shape_SFB(cute::make_shape(m, n, k, 1));
#endif
#endif
  epilogue.thread.alpha = 1;
  epilogue.thread.beta = 0;
#if FUSED
  epilogue.thread.scale_a = epilogue.thread.scale_b = epilogue.thread.scale_c = epilogue.thread.scale_d = 1;
#endif
  return made;
}

struct Prepared {
  GEMM gemm;
  GEMM::Arguments arguments;
  void *workspace;
};

static std::vector<std::unique_ptr<Prepared>> prepared;

// Bytes of the card's memory that launches work in.
ENTRY std::int64_t example_workspace(Given const *given) { return std::int64_t(GEMM::get_workspace_size(arguments_of(*given))); }

// The number of an operand set for `example_launch`; negative is the number of a cutlass::Status.
ENTRY int example_prepare(Given const *given, void *workspace) {
  auto made = std::make_unique<Prepared>(Prepared{{}, arguments_of(*given), workspace});
  auto status = made->gemm.can_implement(made->arguments);
  if (status == cutlass::Status::kSuccess) status = made->gemm.initialize(made->arguments, workspace);
  if (status != cutlass::Status::kSuccess) return -int(status);
  prepared.push_back(std::move(made));
  return int(prepared.size()) - 1;
}

// 0, or the negative number of a cutlass::Status. Stream-k counts in its workspace, which is set to zero first.
ENTRY int example_launch(int number, cudaStream_t stream) {
  auto &made = *prepared[number];
  if constexpr (STREAM_K) {
    auto const status = Kernel::initialize_workspace(made.arguments, made.workspace, stream);
    if (status != cutlass::Status::kSuccess) return -int(status);
  }
  return -int(made.gemm.run(stream));
}
