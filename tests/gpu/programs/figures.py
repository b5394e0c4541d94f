"""pynvml's figures of each GPU beside the daemon's metrics. It is a reading of NVML by others than memwarden's authors."""

import pynvml

from common import MIB, metrics, run, value


def text(answer):
    return answer.decode() if isinstance(answer, bytes) else answer


def one(result, index, before):
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    readings = []

    def read(metric, tolerance, call, **labels):
        """Reads now; the daemon's value afterwards is taken when all have been read."""
        name = "memwarden_gpu_" + metric
        what = "%s{gpu=\"%d\"%s}" % (name, index, "".join(",%s=%r" % pair for pair in labels.items()))
        try:
            readings.append((what, name, labels, tolerance, float(call())))
        except pynvml.NVMLError as error:
            said = value(name, before, gpu=str(index), **labels)
            if said is None:
                result.not_judged(what, "pynvml: %s; memwarden exposes nothing either" % error)
            else:
                result.check(what, False, "%s; pynvml: %s" % (said, error))

    memory = None
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except (AttributeError, TypeError, pynvml.NVMLError) as error:
        result.not_judged("memory of GPU %d" % index, "this pynvml or driver has no memory info v2: %s" % error)
    if memory is not None:
        read("memory_total_bytes", 0, lambda: memory.total)
        read("memory_used_bytes", 4 * MIB, lambda: memory.used)
        read("memory_free_bytes", 4 * MIB, lambda: memory.free)
    rates = "utilization_ratio", "memory_controller_utilization_ratio"
    read(rates[0], 0.2, lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
    read(rates[1], 0.2, lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).memory / 100)
    read("temperature_celsius", 3, lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
    read("power_watts", 30, lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3)
    read("power_limit_watts", 1, lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3)
    read("energy_joules_total", 1, lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)
    for clock, number in (("graphics", pynvml.NVML_CLOCK_GRAPHICS), ("memory", pynvml.NVML_CLOCK_MEM)):
        read("clock_hertz", 3e8, lambda number=number: pynvml.nvmlDeviceGetClockInfo(handle, number) * 1e6, clock=clock)
    read("performance_state", 1, lambda: pynvml.nvmlDeviceGetPerformanceState(handle))
    read("pcie_replays_total", 0, lambda: pynvml.nvmlDeviceGetPcieReplayCounter(handle))
    read("processes", 0, lambda: len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle)))
    after = wait_for_newer(before, index)
    for what, name, labels, tolerance, figure in readings:
        said = [value(name, page, gpu=str(index), **labels) for page in (before, after)]
        result.between(what, said[0], figure, said[1], tolerance)
    uuid = text(pynvml.nvmlDeviceGetUUID(handle))
    known = [labels for name, labels, _ in after if name == "memwarden_gpu_info" and labels.get("gpu") == str(index)]
    result.check("UUID of GPU %d" % index, known and known[0]["uuid"] == uuid, uuid)


def wait_for_newer(before, index):
    """A page whose sample of the GPU is newer than this moment."""
    import time

    time.sleep(0.8)
    return metrics()


def pynvml_part(result, device):
    pynvml.nvmlInit()
    count = pynvml.nvmlDeviceGetCount()
    from common import wait

    before = wait(lambda: (lambda page: page if value("memwarden_gpus", page) == count
                           and value("memwarden_gpu_temperature_celsius", page, gpu=str(count - 1)) is not None
                           else None)(metrics()), 20)
    result.check("number of GPUs", before is not None, str(count))
    for index in range(count):
        one(result, index, before or metrics())
    pynvml.nvmlShutdown()
    return "%d GPUs" % count


run({"pynvml": pynvml_part})
