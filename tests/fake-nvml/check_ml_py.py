#!/usr/bin/env python3
"""Reads an NVML, mostly the fake one, with nvidia-ml-py, the client everybody else uses.

    check_ml_py.py --library PATH [--scenario FILE]   prints {uuid: {metric: value or {"error": code}}}
    check_ml_py.py --library PATH --self-test       drives scenarios and checks what comes back

Values are NVML's own, in its units: bytes, percent, milliwatts, millijoules, MHz, KiB, nanoseconds.
A GPU whose handle cannot be had is listed as "index:N", one that does not answer in time has
{"error": "timeout"}. MIG instances are listed by their own UUID.
"""

import argparse
import ctypes
import json
import os
import sys
import threading

import pynvml as nvml

ALL_LINKS = 0xFFFFFFFF
TIMEOUT_S = 5.0


def open_library(path):
    # nvidia-ml-py opens libnvidia-ml.so.1 only where no library is set yet.
    nvml.nvmlLib = ctypes.CDLL(os.path.abspath(path))


def field(handle, number, scope=0):
    value = nvml.nvmlDeviceGetFieldValues(handle, [(number, scope)])[0]
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(value.nvmlReturn)
    name = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}
    return getattr(value.value, name[value.valueType])


def processes(kind):
    """The list of the newest version of the call that the library has; the oldest one has no instances, and no function here."""

    class Oldest(ctypes.Structure):
        _fields_ = [("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong)]
        gpuInstanceId = computeInstanceId = None

    def oldest(handle):
        count, room = ctypes.c_uint(512), (Oldest * 512)()
        function = nvml._nvmlGetFunctionPointer(f"nvmlDeviceGet{kind}RunningProcesses")
        nvml._nvmlCheckReturn(function(handle, ctypes.byref(count), room))
        return room[: count.value]

    def function(handle):
        for version in ("_v3", "_v2"):
            try:
                return getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses{version}")(handle)
            except (AttributeError, nvml.NVMLError_FunctionNotFound):
                pass
        return oldest(handle)

    def read(handle):
        return [
            {
                "pid": process.pid,
                "memory": process.usedGpuMemory,
                "gi": None if process.gpuInstanceId in (None, 0xFFFFFFFF) else process.gpuInstanceId,
                "ci": None
                if process.computeInstanceId in (None, 0xFFFFFFFF)
                else process.computeInstanceId,
            }
            for process in function(handle)
        ]

    return read


def process_utilization(handle):
    try:
        samples = nvml.nvmlDeviceGetProcessUtilization(handle, 0)
    except nvml.NVMLError_NotFound:
        return []
    return [
        {"pid": s.pid, "sm": s.smUtil, "mem": s.memUtil, "enc": s.encUtil, "dec": s.decUtil}
        for s in samples
    ]


def part(function, *names):
    """Reads a struct's members or a tuple's items as one value each."""

    def reader(name):
        def read(handle):
            result = function(handle)
            return result[name] if isinstance(name, int) else getattr(result, name)

        return read

    return [reader(name) for name in names]


def call(function, *arguments):
    return lambda handle: function(handle, *arguments)


def metrics():
    n = nvml
    memory = part(lambda h: n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2), "total", "reserved", "used", "free")
    memory_v1 = part(n.nvmlDeviceGetMemoryInfo, "total", "used", "free")
    bar1 = part(n.nvmlDeviceGetBAR1MemoryInfo, "bar1Total", "bar1Used", "bar1Free")
    utilization = part(n.nvmlDeviceGetUtilizationRates, "gpu", "memory")
    pci = part(n.nvmlDeviceGetPciInfo, "busId", "pciDeviceId", "pciSubSystemId", "bus")
    ecc = part(n.nvmlDeviceGetEccMode, 0, 1)
    rows = part(n.nvmlDeviceGetRemappedRows, 0, 1, 2, 3)
    mig = part(n.nvmlDeviceGetMigMode, 0, 1)
    limits = part(n.nvmlDeviceGetPowerManagementLimitConstraints, 0, 1)
    attributes = part(n.nvmlDeviceGetAttributes_v2, "multiprocessorCount", "gpuInstanceSliceCount", "memorySizeMB")
    table = {
        "name": n.nvmlDeviceGetName,
        "index": n.nvmlDeviceGetIndex,
        "minor_number": n.nvmlDeviceGetMinorNumber,
        "serial": n.nvmlDeviceGetSerial,
        "pci_bus_id": pci[0],
        "pci_device_id": pci[1],
        "pci_subsystem_id": pci[2],
        "pci_bus": pci[3],
        "brand": n.nvmlDeviceGetBrand,
        "architecture": n.nvmlDeviceGetArchitecture,
        "compute_capability": n.nvmlDeviceGetCudaComputeCapability,
        "cores": n.nvmlDeviceGetNumGpuCores,
        "memory_bus_width": n.nvmlDeviceGetMemoryBusWidth,
        "persistence_mode": n.nvmlDeviceGetPersistenceMode,
        "compute_mode": n.nvmlDeviceGetComputeMode,
        "memory_total": memory[0],
        "memory_reserved": memory[1],
        "memory_used": memory[2],
        "memory_free": memory[3],
        "memory_v1_total": memory_v1[0],
        "memory_v1_used": memory_v1[1],
        "memory_v1_free": memory_v1[2],
        "bar1_total": bar1[0],
        "bar1_used": bar1[1],
        "bar1_free": bar1[2],
        "utilization": utilization[0],
        "memory_utilization": utilization[1],
        "encoder_utilization": part(n.nvmlDeviceGetEncoderUtilization, 0)[0],
        "decoder_utilization": part(n.nvmlDeviceGetDecoderUtilization, 0)[0],
        "compute_processes": processes("Compute"),
        "graphics_processes": processes("Graphics"),
        "mps_processes": processes("MPSCompute"),
        "process_utilization": process_utilization,
        "temperature": call(n.nvmlDeviceGetTemperature, n.NVML_TEMPERATURE_GPU),
        "temperature_v": call(n.nvmlDeviceGetTemperatureV, n.NVML_TEMPERATURE_GPU),
        "temperature_margin": n.nvmlDeviceGetMarginTemperature,
        "memory_temperature": call(field, n.NVML_FI_DEV_MEMORY_TEMP),
        "threshold_shutdown": call(n.nvmlDeviceGetTemperatureThreshold, 0),
        "threshold_slowdown": call(n.nvmlDeviceGetTemperatureThreshold, 1),
        "threshold_memory_max": call(n.nvmlDeviceGetTemperatureThreshold, 2),
        "threshold_gpu_max": call(n.nvmlDeviceGetTemperatureThreshold, 3),
        "power_usage": n.nvmlDeviceGetPowerUsage,
        "power_average": call(field, n.NVML_FI_DEV_POWER_AVERAGE),
        "power_instant": call(field, n.NVML_FI_DEV_POWER_INSTANT),
        "enforced_power_limit": n.nvmlDeviceGetEnforcedPowerLimit,
        "power_management_limit": n.nvmlDeviceGetPowerManagementLimit,
        "power_default_limit": n.nvmlDeviceGetPowerManagementDefaultLimit,
        "power_min_limit": limits[0],
        "power_max_limit": limits[1],
        "energy": n.nvmlDeviceGetTotalEnergyConsumption,
        "pstate": n.nvmlDeviceGetPerformanceState,
        "throttle_reasons": n.nvmlDeviceGetCurrentClocksThrottleReasons,
        "event_reasons": n.nvmlDeviceGetCurrentClocksEventReasons,
        "fan_speed": n.nvmlDeviceGetFanSpeed,
        "ecc_mode": ecc[0],
        "ecc_pending": ecc[1],
        "remapped_corrected": rows[0],
        "remapped_uncorrected": rows[1],
        "remapped_pending": rows[2],
        "remapped_failure": rows[3],
        "remapped_histogram_none": part(n.nvmlDeviceGetRowRemapperHistogram, "none")[0],
        "retired_pages_single_bit": call(n.nvmlDeviceGetRetiredPages, 0),
        "retired_pages_double_bit": call(n.nvmlDeviceGetRetiredPages_v2, 1),
        "retired_pages_pending": n.nvmlDeviceGetRetiredPagesPendingStatus,
        "pcie_generation": n.nvmlDeviceGetCurrPcieLinkGeneration,
        "pcie_width": n.nvmlDeviceGetCurrPcieLinkWidth,
        "pcie_max_generation": n.nvmlDeviceGetMaxPcieLinkGeneration,
        "pcie_max_width": n.nvmlDeviceGetMaxPcieLinkWidth,
        "pcie_replays": n.nvmlDeviceGetPcieReplayCounter,
        "pcie_tx_throughput": call(n.nvmlDeviceGetPcieThroughput, 0),
        "pcie_rx_throughput": call(n.nvmlDeviceGetPcieThroughput, 1),
        "pcie_tx_bytes": call(field, n.NVML_FI_DEV_PCIE_COUNT_TX_BYTES),
        "pcie_rx_bytes": call(field, n.NVML_FI_DEV_PCIE_COUNT_RX_BYTES),
        "nvlink_count": call(field, n.NVML_FI_DEV_NVLINK_LINK_COUNT),
        "nvlink_data_tx": call(field, n.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS),
        "nvlink_data_rx": call(field, n.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS),
        "nvlink_raw_tx": call(field, n.NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_TX, ALL_LINKS),
        "nvlink_raw_rx": call(field, n.NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX, ALL_LINKS),
        "mig_mode": mig[0],
        "mig_pending": mig[1],
        "mig_max_count": n.nvmlDeviceGetMaxMigDeviceCount,
        "is_mig": n.nvmlDeviceIsMigDeviceHandle,
        "gpu_instance": n.nvmlDeviceGetGpuInstanceId,
        "compute_instance": n.nvmlDeviceGetComputeInstanceId,
        "mig_parent": lambda h: n.nvmlDeviceGetUUID(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(h)),
        "mig_multiprocessors": attributes[0],
        "mig_gpu_slices": attributes[1],
        "mig_memory_mib": attributes[2],
        "supported_events": n.nvmlDeviceGetSupportedEventTypes,
        "gpm_supported": part(n.nvmlGpmQueryDeviceSupport, "isSupportedDevice")[0],
    }
    for number, domain in enumerate(("graphics", "sm", "memory", "video")):
        table[f"clock_{domain}"] = call(n.nvmlDeviceGetClockInfo, number)
        table[f"max_clock_{domain}"] = call(n.nvmlDeviceGetMaxClockInfo, number)
    policies = {0: "power", 1: "thermal", 2: "sync_boost", 3: "board_limit", 4: "low_utilization"}
    policies |= {5: "reliability", 10: "app_clocks", 11: "base_clocks"}
    for number, policy in policies.items():
        table[f"violation_{policy}"] = part(call(n.nvmlDeviceGetViolationStatus, number), "violationTime")[0]
    for number, reason in enumerate(("sw_thermal", "hw_thermal", "hw_power_brake")):
        table[f"slowdown_{reason}"] = call(field, 269 + number)
        table[f"slowdown_{reason}_before_580_82"] = call(field, 251 + number)
    for error, error_name in enumerate(("corrected", "uncorrected")):
        for counter, counter_name in enumerate(("volatile", "aggregate")):
            key = f"{error_name}_{counter_name}"
            table[f"ecc_total_{key}"] = call(n.nvmlDeviceGetTotalEccErrors, error, counter)
            for location, location_name in ((2, "dram"), (7, "sram")):
                table[f"ecc_{location_name}_{key}"] = call(n.nvmlDeviceGetMemoryErrorCounter, error, counter, location)
    for number, name in enumerate(("correctable", "uncorrectable", "pending", "failure")):
        table[f"field_remapped_{name}"] = call(field, 142 + number)
    for link in range(18):
        table[f"nvlink_{link}_state"] = call(n.nvmlDeviceGetNvLinkState, link)
        table[f"nvlink_{link}_version"] = call(n.nvmlDeviceGetNvLinkVersion, link)
        table[f"nvlink_{link}_data_tx"] = call(field, n.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, link)
        for number, kind in enumerate(("replay", "recovery", "crc_flit", "crc_data")):
            table[f"nvlink_{link}_{kind}"] = call(n.nvmlDeviceGetNvLinkErrorCounter, link, number)
    return table


def read(handle):
    result = {}
    for name, function in metrics().items():
        try:
            value = function(handle)
            # Some of nvidia-ml-py's functions forget to take the number out of its box.
            result[name] = value.value if isinstance(value, ctypes._SimpleCData) else value
        except nvml.NVMLError as error:
            result[name] = {"error": error.value}
    return result


def sweep_device(index, result):
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = nvml.nvmlDeviceGetUUID(handle)
    except nvml.NVMLError as error:
        result[f"index:{index}"] = {"error": error.value}
        return
    result[uuid] = read(handle)
    try:
        slots = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except nvml.NVMLError:
        slots = 0
    for slot in range(slots):
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
            uuid = nvml.nvmlDeviceGetUUID(instance)
        except nvml.NVMLError:
            continue
        result[uuid] = read(instance)


def sweep():
    """All devices at once, so that a hung one costs only itself."""
    results = [{} for _ in range(nvml.nvmlDeviceGetCount())]
    threads = [
        threading.Thread(target=sweep_device, args=(index, result), daemon=True)
        for index, result in enumerate(results)
    ]
    for thread in threads:
        thread.start()
    whole = {}
    for index, (thread, result) in enumerate(zip(threads, results)):
        thread.join(TIMEOUT_S)
        whole |= {f"index:{index}": {"error": "timeout"}} if thread.is_alive() else result
    return whole


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="libfake_nvml.so")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--scenario", help="the scenario file that a fake library is to read")
    mode.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_test:
        from check_ml_py_cases import run

        status = run(arguments.library)
    else:
        if arguments.scenario:
            os.environ["FAKE_NVML_SCENARIO"] = os.path.abspath(arguments.scenario)
        open_library(arguments.library)
        try:
            nvml.nvmlInit()
            json.dump(sweep(), sys.stdout, indent=1, sort_keys=True)
            print()
            status = 0
        except nvml.NVMLError as error:
            print(f"nvmlInit: {error} ({error.value})", file=sys.stderr)
            status = 1
    sys.stdout.flush()
    # A thread inside a hung call would keep the interpreter from ending.
    os._exit(status)


if __name__ == "__main__":
    main()
