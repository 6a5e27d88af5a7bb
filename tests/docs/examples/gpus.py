from airflow_tf.testing.nvml import Gpu, SimulatedNvml


def two_gpus(folder):
    nvml = SimulatedNvml(folder)  # processes started with nvml.environment find its library
    nvml.write([Gpu(uuid="GPU-1"), Gpu(uuid="GPU-2", processes=[(4242, 2**30)])])
    return nvml
