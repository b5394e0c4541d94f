"""The self-test of check_ml_py.py: scenarios that change, and what a client must then see."""

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import check_ml_py as client
import pynvml as nvml

CASES = []
GIB = 1 << 30


def case(function):
    CASES.append(function)
    return function


class Machine:
    """The scenario file, replaced at once and not returned from until the library has seen it."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "scenario.json")
        self.generation = 0

    def put(self, *devices, **top):
        self.put_text(json.dumps({"driver_generation": self.generation, "devices": list(devices), **top}))

    def put_text(self, text):
        with open(self.path + ".new", "w") as file:
            file.write(text)
        os.replace(self.path + ".new", self.path)
        time.sleep(0.012)
        if nvml.nvmlLib is not None:
            nvml.nvmlSystemGetNVMLVersion()  # The library looks at the file in the course of a call.


def handle(index=0):
    return nvml.nvmlDeviceGetHandleByIndex(index)


def code(function, *arguments):
    try:
        function(*arguments)
    except nvml.NVMLError as error:
        return error.value
    return 0


def raw(name, *arguments):
    return nvml._nvmlGetFunctionPointer(name)(*arguments)


@case
def healthy_defaults(machine):
    machine.put({"processes": [{"pid": 7, "memory": 3 * GIB}]}, {})
    assert nvml.nvmlDeviceGetCount() == 2
    memory = nvml.nvmlDeviceGetMemoryInfo(handle(), version=nvml.nvmlMemory_v2)
    assert memory.used == 3 * GIB
    assert memory.used + memory.reserved + memory.free == memory.total
    old = nvml.nvmlDeviceGetMemoryInfo(handle())
    assert old.used == memory.used + memory.reserved and old.free == memory.free
    for metric, value in client.read(handle(1)).items():
        # What a whole H100 without MIG instances, fans and page retirement does not have.
        lacks = ("fan_", "retired_", "gpu_instance", "compute_instance", "mig_parent", "mig_m", "mig_g")
        if not metric.startswith(lacks) and not metric.endswith("_before_580_82"):
            assert not isinstance(value, dict), (metric, value)


@case
def counts_come_first(machine):
    machine.put({"processes": [{"pid": pid, "memory": 1} for pid in range(1, 4)]}, {})
    for version in ("", "_v2", "_v3"):
        name = "nvmlDeviceGetComputeRunningProcesses" + version
        count = ctypes.c_uint(0)
        assert raw(name, handle(), ctypes.byref(count), None) == nvml.NVML_ERROR_INSUFFICIENT_SIZE
        assert count.value == 3
        small, count = (nvml.c_nvmlProcessInfo_v2_t * 2)(), ctypes.c_uint(2)
        assert raw(name, handle(), ctypes.byref(count), small) == nvml.NVML_ERROR_INSUFFICIENT_SIZE
        assert count.value == 3
        count = ctypes.c_uint(0)
        assert raw(name, handle(1), ctypes.byref(count), None) == nvml.NVML_SUCCESS
        assert raw(name, handle(), None, None) == nvml.NVML_ERROR_INVALID_ARGUMENT
    found = nvml.nvmlDeviceGetComputeRunningProcesses(handle())
    assert [process.pid for process in found] == [1, 2, 3]


@case
def process_utilization_has_its_own_rules(machine):
    machine.put({"processes": [{"pid": 1, "sm": 50, "mem": 9}, {"pid": 2}]}, {"processes": [{"pid": 3}]})
    samples = nvml.nvmlDeviceGetProcessUtilization(handle(), 0)
    assert [(sample.pid, sample.smUtil, sample.memUtil) for sample in samples] == [(1, 50, 9)]
    newest = int(time.time() * 1e6) + 1_000_000
    assert code(nvml.nvmlDeviceGetProcessUtilization, handle(), newest) == nvml.NVML_ERROR_NOT_FOUND
    assert code(nvml.nvmlDeviceGetProcessUtilization, handle(1), 0) == nvml.NVML_ERROR_NOT_FOUND


@case
def process_tables_grow_between_the_calls(machine):
    def fetch(capacity):
        table, count = (nvml.c_nvmlProcessInfo_v2_t * capacity)(), ctypes.c_uint(capacity)
        result = raw("nvmlDeviceGetComputeRunningProcesses_v3", handle(), ctypes.byref(count), table)
        return result, count.value

    machine.put({"processes": [{"pid": 1}], "churn": {"grow_between_calls": 20, "limit": 40}})
    small = nvml.NVML_ERROR_INSUFFICIENT_SIZE
    assert code(nvml.nvmlDeviceGetComputeRunningProcesses, handle()) == small
    assert fetch(21) == (small, 41)
    assert fetch(41) == (nvml.NVML_SUCCESS, 41)
    assert len(nvml.nvmlDeviceGetComputeRunningProcesses(handle())) == 41


@case
def memory_may_be_unknown(machine):
    machine.put({"processes": [{"pid": 1, "memory": None}, {"pid": 2, "memory": 5}]}, {"memory": None})
    found = nvml.nvmlDeviceGetComputeRunningProcesses(handle())
    assert [process.usedGpuMemory for process in found] == [None, 5]
    assert nvml.nvmlDeviceGetMemoryInfo(handle(), version=nvml.nvmlMemory_v2).used == 5
    assert code(nvml.nvmlDeviceGetMemoryInfo, handle(1)) == nvml.NVML_ERROR_NOT_SUPPORTED


@case
def versions_and_null_are_checked(machine):
    machine.put({"retired_pages": {"single_bit": [4096, 8192]}})
    memory = nvml.c_nvmlMemory_v2_t()
    memory.version = 0x01000028
    mismatch = nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    assert raw("nvmlDeviceGetMemoryInfo_v2", handle(), ctypes.byref(memory)) == mismatch
    invalid = nvml.NVML_ERROR_INVALID_ARGUMENT
    for name in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetPowerUsage"):
        assert raw(name, handle(), None) == invalid, name
    assert raw("nvmlDeviceGetPowerUsage", ctypes.c_void_p(0xBAD), ctypes.byref(ctypes.c_uint())) == invalid
    assert raw("nvmlDeviceGetPowerUsage", None, ctypes.byref(ctypes.c_uint())) == invalid
    assert raw("nvmlDeviceGetFieldValues", handle(), ctypes.c_int(0), None) == invalid
    small = nvml.NVML_ERROR_INSUFFICIENT_SIZE
    assert raw("nvmlDeviceGetName", handle(), ctypes.create_string_buffer(4), ctypes.c_uint(4)) == small
    assert nvml.nvmlDeviceGetRetiredPages(handle(), 0) == [4096, 8192]
    assert code(nvml.nvmlDeviceGetHandleByIndex, 9) == invalid
    assert code(nvml.nvmlDeviceGetHandleByUUID, "GPU-none") == nvml.NVML_ERROR_NOT_FOUND


@case
def codes_are_as_the_file_says(machine):
    machine.put(
        {"returns": {"nvmlDeviceGetPowerUsage": 27, "nvmlDeviceGetTemperature": 4242}},
        {"returns": {"*": "not_supported", "nvmlDeviceGetHandleByIndex_v2": 0, "nvmlDeviceGetName": 0}},
        {"field_returns": {"82": 25}, "memory_temperature": 50},
    )
    assert code(nvml.nvmlDeviceGetPowerUsage, handle()) == 27
    assert code(nvml.nvmlDeviceGetTemperature, handle(), 0) == 4242
    assert nvml.nvmlDeviceGetName(handle(1)).startswith("NVIDIA")
    assert code(nvml.nvmlDeviceGetUUID, handle(1)) == nvml.NVML_ERROR_NOT_SUPPORTED
    assert code(client.field, handle(2), 82) == 25
    assert client.field(handle(2), 185) > 0
    machine.put({}, count="no_permission")
    assert code(nvml.nvmlDeviceGetCount) == nvml.NVML_ERROR_NO_PERMISSION


@case
def lost_gpus_come_back(machine):
    machine.put({}, {})
    first, second = handle(0), handle(1)
    machine.put({}, {"state": "lost"})
    assert code(nvml.nvmlDeviceGetName, second) == nvml.NVML_ERROR_GPU_IS_LOST
    assert code(nvml.nvmlDeviceGetHandleByIndex, 1) == nvml.NVML_ERROR_GPU_IS_LOST
    assert nvml.nvmlDeviceGetName(first)
    machine.put({}, {})
    assert nvml.nvmlDeviceGetName(second)
    machine.put({"state": {"lost_after_calls": 3}})
    codes = [code(nvml.nvmlDeviceGetName, first) for _ in range(5)]
    assert codes == [0, 0, 0, 15, 15], codes
    now = time.time()
    machine.put({"state": {"lost_between_s": [0.1, 0.3]}}, epoch=now)
    assert code(nvml.nvmlDeviceGetName, first) == 0
    time.sleep(0.15)
    assert code(nvml.nvmlDeviceGetName, first) == 15
    time.sleep(0.25)
    assert code(nvml.nvmlDeviceGetName, first) == 0


@case
def handles_follow_the_uuid(machine):
    machine.put({"uuid": "GPU-a", "temperature": 1}, {"uuid": "GPU-b", "temperature": 2})
    b = handle(1)
    machine.put({"uuid": "GPU-b", "temperature": 3})
    assert nvml.nvmlDeviceGetTemperature(b, 0) == 3 and nvml.nvmlDeviceGetIndex(b) == 0
    pci = nvml.nvmlDeviceGetPciInfo(b)
    again = nvml.nvmlDeviceGetHandleByPciBusId(pci.busId.lower())
    assert nvml.nvmlDeviceGetUUID(again) == "GPU-b"


@case
def a_hang_ends_with_the_file(machine):
    machine.put({}, {})
    stuck, well = handle(0), handle(1)
    machine.put({"hang": ["*"]}, {})
    answers = []
    thread = threading.Thread(target=lambda: answers.append(nvml.nvmlDeviceGetPowerUsage(stuck)), daemon=True)
    before = time.process_time()
    thread.start()
    time.sleep(0.3)
    assert not answers and thread.is_alive()
    start = time.perf_counter()
    assert nvml.nvmlDeviceGetPowerUsage(well) > 0
    assert time.perf_counter() - start < 0.05
    assert time.process_time() - before < 0.1
    machine.put({}, {})
    thread.join(1)
    assert answers == [72000], answers
    machine.put({"hang": ["nvmlDeviceGetTemperature"]})
    assert nvml.nvmlDeviceGetPowerUsage(stuck) == 72000


@case
def latency_is_kept(machine):
    machine.put({"latency_ms": {"*": 5, "nvmlDeviceGetPowerUsage": 60}})
    device = handle()
    start = time.perf_counter()
    nvml.nvmlDeviceGetPowerUsage(device)
    middle = time.perf_counter()
    nvml.nvmlDeviceGetName(device)
    end = time.perf_counter()
    assert 0.06 <= middle - start < 0.2 and 0.005 <= end - middle < 0.06
    machine.put({})
    start = time.perf_counter()
    nvml.nvmlDeviceGetPcieThroughput(device, 0)
    assert time.perf_counter() - start >= 0.02


@case
def each_xid_arrives_once(machine):
    def wait(events, timeout=0):
        try:
            data = nvml.nvmlEventSetWait_v2(events, timeout)
        except nvml.NVMLError_Timeout:
            return None
        return data.eventData, data.gpuInstanceId, data.computeInstanceId

    none = 0xFFFFFFFF
    old, a, b = {"xid": 13}, {"xid": 48, "gi": 2, "ci": 1}, {"xid": 999}
    machine.put({"xids": [old]}, {})
    events, other = nvml.nvmlEventSetCreate(), nvml.nvmlEventSetCreate()
    for events_of in (events, other):
        nvml.nvmlDeviceRegisterEvents(handle(), nvml.nvmlEventTypeXidCriticalError, events_of)
    assert wait(events) is None
    machine.put({"xids": [old, a, b]}, {"xids": [{"xid": 79}]})
    assert [wait(events) for _ in range(3)] == [(48, 2, 1), (999, none, none), None]
    assert [wait(other) for _ in range(3)] == [(48, 2, 1), (999, none, none), None]
    start = time.perf_counter()
    assert wait(events, 120) is None
    assert 0.12 <= time.perf_counter() - start < 0.3
    timer = threading.Timer(0.1, machine.put, [{"xids": [old, a, b, {"xid": 63}]}, {}])
    timer.start()
    assert wait(events, 2000) == (63, none, none)
    timer.join()
    machine.put({"xids": [{"xid": 31, "seq": 50, "at_s": 0.1}]}, epoch=time.time())
    assert wait(events) is None
    assert wait(events, 1000) == (31, none, none)
    late = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(handle(), nvml.nvmlEventTypeXidCriticalError, late)
    assert wait(late) is None
    unsupported = nvml.NVML_ERROR_NOT_SUPPORTED
    assert code(nvml.nvmlDeviceRegisterEvents, handle(), 1 << 40, late) == unsupported
    for events_of in (events, other, late):
        nvml.nvmlEventSetFree(events_of)
    assert code(nvml.nvmlEventSetWait_v2, late, 0) == nvml.NVML_ERROR_INVALID_ARGUMENT


@case
def mig_instances_are_devices(machine):
    def instance(number, **more):
        return {"uuid": f"MIG-{number}", "gi": number, "ci": 0, "memory": {"total": 10 * GIB, "reserved": 0}, **more}

    instances = [instance(3, processes=[{"pid": 8, "memory": GIB}]), None, instance(5)]
    machine.put({"mig": {"enabled": True, "instances": instances}, "processes": [{"pid": 9, "memory": 1}]})
    parent = handle()
    assert nvml.nvmlDeviceGetMigMode(parent) == [1, 1]
    assert nvml.nvmlDeviceGetMaxMigDeviceCount(parent) == 7
    unsupported, invalid = nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_INVALID_ARGUMENT
    assert code(nvml.nvmlDeviceGetUtilizationRates, parent) == unsupported
    assert code(nvml.nvmlDeviceGetProcessUtilization, parent, 0) == unsupported
    mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, 0)
    assert code(nvml.nvmlDeviceGetMigDeviceHandleByIndex, parent, 1) == nvml.NVML_ERROR_NOT_FOUND
    assert code(nvml.nvmlDeviceGetMigDeviceHandleByIndex, parent, 7) == invalid
    assert nvml.nvmlDeviceIsMigDeviceHandle(mig) and not nvml.nvmlDeviceIsMigDeviceHandle(parent)
    assert nvml.nvmlDeviceGetUUID(mig) == "MIG-3"
    assert (nvml.nvmlDeviceGetGpuInstanceId(mig), nvml.nvmlDeviceGetComputeInstanceId(mig)) == (3, 0)
    assert nvml.nvmlDeviceGetMemoryInfo(mig).used == GIB
    found = nvml.nvmlDeviceGetComputeRunningProcesses(mig)
    assert [(process.pid, process.gpuInstanceId) for process in found] == [(8, 3)]
    everyone = nvml.nvmlDeviceGetComputeRunningProcesses(parent)
    assert [process.pid for process in everyone] == [9, 8]
    back = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig)
    assert nvml.nvmlDeviceGetUUID(back) == nvml.nvmlDeviceGetUUID(parent)
    assert nvml.nvmlDeviceGetAttributes_v2(mig).memorySizeMB == 10 * 1024
    assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByUUID("MIG-5")) == "MIG-5"
    events = nvml.nvmlEventSetCreate()
    assert code(nvml.nvmlDeviceRegisterEvents, mig, 8, events) == invalid
    nvml.nvmlEventSetFree(events)
    assert code(nvml.nvmlDeviceGetPowerUsage, mig) == unsupported


@case
def fields_have_scopes(machine):
    machine.put({"nvlink": {"links": 4, "down": [1], "data_tx_kib": 100}, "fields": {"230": 2}, "violations_ns": {"hw_thermal": 77}})
    device = handle()
    assert client.field(device, 138, 0) == 100
    assert client.field(device, 138, client.ALL_LINKS) == 300
    assert code(client.field, device, 138, 1) == nvml.NVML_ERROR_NOT_SUPPORTED
    assert code(client.field, device, 138, 4) == nvml.NVML_ERROR_INVALID_ARGUMENT
    assert client.field(device, 230) == 2
    assert client.field(device, 270) == 77
    assert code(client.field, device, 252) == nvml.NVML_ERROR_NOT_SUPPORTED
    machine.put({"violations_ns": {"hw_thermal": 77}}, driver_version="575.51.03")
    assert client.field(device, 252) == 77
    assert code(client.field, device, 270) == nvml.NVML_ERROR_NOT_SUPPORTED


@case
def values_move_with_the_epoch(machine):
    machine.put({"energy": {"ramp": {"from": 0, "per_second": 1000}}}, epoch=time.time() - 100)
    first = nvml.nvmlDeviceGetTotalEnergyConsumption(handle())
    assert 100_000 <= first < 101_000, first
    time.sleep(0.1)
    assert 100 <= nvml.nvmlDeviceGetTotalEnergyConsumption(handle()) - first < 300


@case
def broken_files_change_nothing(machine):
    machine.put({"temperature": 61})
    for text in ('{"devices": [{"tempera', '{"devices": [{"temprature": 1}]}', ""):
        machine.put_text(text)
        assert nvml.nvmlDeviceGetTemperature(handle(), 0) == 61
    machine.put({"temperature": 62})
    assert nvml.nvmlDeviceGetTemperature(handle(), 0) == 62


@case
def a_driver_reload_ends_the_session(machine):
    machine.put({})
    old, events = handle(), nvml.nvmlEventSetCreate()
    machine.generation += 1
    machine.put({})
    uninitialized = nvml.NVML_ERROR_UNINITIALIZED
    assert code(nvml.nvmlDeviceGetName, old) == uninitialized
    assert code(nvml.nvmlDeviceGetCount) == uninitialized
    assert code(nvml.nvmlEventSetWait_v2, events, 50) == uninitialized
    nvml.nvmlShutdown()
    assert code(nvml.nvmlDeviceGetCount) == uninitialized
    nvml.nvmlInit()
    assert code(nvml.nvmlDeviceGetName, old) == nvml.NVML_ERROR_INVALID_ARGUMENT
    assert nvml.nvmlDeviceGetName(handle())


@case
def initialization_is_counted(machine):
    machine.put({})
    nvml.nvmlInit()
    nvml.nvmlShutdown()
    assert nvml.nvmlDeviceGetCount() == 1
    nvml.nvmlShutdown()
    uninitialized = nvml.NVML_ERROR_UNINITIALIZED
    assert code(nvml.nvmlShutdown) == uninitialized
    assert code(nvml.nvmlDeviceGetCount) == uninitialized
    assert nvml.nvmlErrorString(15) == "GPU is lost" and nvml.nvmlSystemGetNVMLVersion()
    machine.put({}, init="driver_not_loaded")
    assert code(nvml.nvmlInit) == nvml.NVML_ERROR_DRIVER_NOT_LOADED
    machine.put({}, init=77)
    assert code(nvml.nvmlInit) == 77
    machine.put({})
    nvml.nvmlInit()
    assert nvml.nvmlDeviceGetCount() == 1


@case
def a_crash_is_a_crash(machine):
    machine.put({}, crash_on_init=True)
    script = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).nvmlInit_v2()"
    command = [sys.executable, "-c", script, nvml.nvmlLib._name]
    assert subprocess.run(command, stderr=subprocess.DEVNULL).returncode == -6


@case
def calls_are_cheap(machine):
    machine.put({})
    function, device, out = nvml._nvmlGetFunctionPointer("nvmlDeviceGetPowerUsage"), handle(), ctypes.c_uint()
    where = ctypes.byref(out)
    start = time.perf_counter()
    for _ in range(20_000):
        function(device, where)
    each = (time.perf_counter() - start) / 20_000
    print(f"     {each * 1e6:.2f} µs a call, ctypes included")
    assert each < 20e-6


def run(library):
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(folder)
        machine.put({})
        os.environ["FAKE_NVML_SCENARIO"] = machine.path
        client.open_library(library)
        assert code(nvml.nvmlDeviceGetCount) == nvml.NVML_ERROR_UNINITIALIZED
        nvml.nvmlInit()
        for function in CASES:
            try:
                function(machine)
                print("ok  ", function.__name__.replace("_", " "))
            except Exception:
                failed += 1
                print("FAIL", function.__name__.replace("_", " "))
                traceback.print_exc(file=sys.stdout)
    print(f"{len(CASES) - failed} of {len(CASES)} cases passed")
    return 1 if failed else 0
