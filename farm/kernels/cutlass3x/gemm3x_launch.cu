static cudaLaunchConfig_t launch_of(dim3 grid, cudaStream_t stream, cudaLaunchAttribute *cluster) {
  cluster->id = cudaLaunchAttributeClusterDimension;
  cluster->val.clusterDim = {cute::size<0>(Cluster{}), cute::size<1>(Cluster{}), 1};
  cudaLaunchConfig_t made{};
  made.gridDim = grid;
  made.blockDim = dim3(Kernel::MaxThreadsPerBlock);
  made.dynamicSmemBytes = Kernel::SharedStorageSize;
  made.stream = stream;
  made.attrs = cluster;
  made.numAttrs = 1;
  return made;
}

// Loads the kernel on the current card. Says how many multiprocessors that has, and how many clusters of the kernel run at once.
ENTRY int gemm_open(std::int64_t *multiprocessors, std::int64_t *clusters) {
  int device = 0, count = 0, at_once = 0;
  void const *kernel = reinterpret_cast<void const *>(gemm);
  if (int error = said(cudaGetDevice(&device))) return error;
  if (int error = said(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device))) return error;
  if (int error = said(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Kernel::SharedStorageSize)))
    return error;
  cudaLaunchAttribute cluster;
  auto const launch = launch_of(dim3(cute::size<0>(Cluster{}), cute::size<1>(Cluster{})), nullptr, &cluster);
  if (int error = said(cudaOccupancyMaxActiveClusters(&at_once, kernel, &launch))) return error;
  *multiprocessors = count;
  *clusters = at_once;
  return 0;
}

// How many bytes of the card's memory a launch works in, the same for every operand set of the problem.
ENTRY int gemm_workspace(Problem const *problem, std::int64_t *bytes) {
  auto const arguments = arguments_of(*problem);
  if (!Kernel::can_implement(arguments)) return said(cutlass::Status::kErrorInvalidProblem);
  *bytes = std::int64_t(Kernel::get_workspace_size(arguments));
  return 0;
}

// CUTLASS leaves a descriptor zero that the driver refused to make.
static bool exists(cute::TmaDescriptor const *descriptor) {
  cute::TmaDescriptor const nothing{};
  return std::memcmp(descriptor, &nothing, sizeof nothing) != 0;
}

template <typename Params>
static bool descriptors_exist(Params const &params) {
  bool all = exists(params.mainloop.tma_load_a.get_tma_descriptor()) &&
             exists(params.mainloop.tma_load_b.get_tma_descriptor());
  if constexpr (EPILOGUE == 1) {
    all = all && exists(params.epilogue.tma_load_c.get_tma_descriptor()) &&
          exists(params.epilogue.tma_store_d.get_tma_descriptor());
  }
  return all;
}

// Writes what launches one operand set to `packed`, an address that is a multiple of 128.
ENTRY int gemm_pack(Packed *packed, Problem const *problem, void *workspace) {
  auto const arguments = arguments_of(*problem);
  if (!Kernel::can_implement(arguments)) return said(cutlass::Status::kErrorInvalidProblem);
  auto const params = Kernel::to_underlying_arguments(arguments, workspace);
  if (!descriptors_exist(params)) return said(cutlass::Status::kErrorInternal);
  new (packed) Packed{params, arguments, workspace, Kernel::get_grid_shape(params)};
  return 0;
}

// Stream-k counts in its workspace which blocks have added their part of a tile, and leaves the counts behind: each launch
// begins by setting them to zero, in the same stream.
ENTRY int gemm_launch(Packed const *packed, cudaStream_t stream) {
  if constexpr (STREAM_K) {
    cutlass::Status const status = Kernel::initialize_workspace(packed->arguments, packed->workspace, stream);
    if (status != cutlass::Status::kSuccess) return said(status);
  }
  cudaLaunchAttribute cluster;
  auto const launch = launch_of(packed->grid, stream, &cluster);
  return said(cudaLaunchKernelEx(&launch, gemm, packed->params));
}

// How many blocks a multiprocessor holds, and the blocks, tiles and stages of a problem that was packed.
ENTRY int gemm_resources(Packed const *packed, Resources *resources) {
  int resident = 0;
  if (int error = said(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, gemm, Kernel::MaxThreadsPerBlock,
                                                                     Kernel::SharedStorageSize)))
    return error;
  auto const shape = packed->arguments.problem_shape;
  auto const tiles = cute::ceil_div(std::int64_t(cute::get<0>(shape)), std::int64_t(cute::size<0>(Tile{}))) *
                     cute::ceil_div(std::int64_t(cute::get<1>(shape)), std::int64_t(cute::size<1>(Tile{})));
  dim3 const grid = packed->grid;
  *resources = {resident, std::int64_t(grid.x) * grid.y * grid.z, tiles, Kernel::DispatchPolicy::Stages};
  return 0;
}
