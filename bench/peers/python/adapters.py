"""Adapters that give each peer the same few methods (cases.py). Each imports its library only when it is opened."""

import itertools
import logging
import os
import sys
import tempfile


def run_chunk(function, items):
    return [function(item) for item in items]


def chunks(items, size):
    items = iter(items)
    return iter(lambda: list(itertools.islice(items, size)), [])


class Peer:
    """Adapter of an executor with `submit`, whose futures have `result`."""

    packages: tuple[str, ...] = ()
    # Whether `submit` takes futures as arguments.
    futures_as_arguments = False
    # Whether a task's result returns to the program.
    returns_results = True

    def __init__(self, workers, folder):
        self.executor = self.open(workers, folder)
        # Without a method of the adapter in between.
        self.submit = self.executor.submit

    def result(self, future):
        return future.result()

    def results(self, futures):
        return [future.result() for future in futures]

    def map_chunked(self, function, items, chunk):
        """Maps with the library's own chunks, if it has them."""
        return list(self.executor.map(function, items, chunksize=chunk))

    def close(self):
        self.executor.shutdown()


class Chunks:
    """Chunks for peers without their own: a task for each chunk, as users of these peers write it."""

    def map_chunked(self, function, items, chunk):
        results = self.results([self.submit(run_chunk, function, some) for some in chunks(items, chunk)])
        return list(itertools.chain.from_iterable(results)) if self.returns_results else None


class Hotlease(Peer):
    futures_as_arguments = True

    def open(self, workers, folder):
        import hotlease

        executor = hotlease.Executor(workers)
        if executor._slots() < workers:
            sys.exit(f"of {workers} workers the platform has only {executor._slots()} free")
        return executor


class ProcessPool(Peer):
    def open(self, workers, folder):
        import concurrent.futures

        return concurrent.futures.ProcessPoolExecutor(workers)


class Loky(Peer):
    """joblib's executor of processes."""

    packages = ("joblib",)

    def open(self, workers, folder):
        from joblib.externals.loky import get_reusable_executor

        return get_reusable_executor(max_workers=workers, timeout=600)


class Mpi(Peer):
    packages = ("mpi4py", "mpich")

    def open(self, workers, folder):
        from mpi4py.futures import MPIPoolExecutor

        return MPIPoolExecutor(workers)


class Parsl(Chunks, Peer):
    packages = ("parsl",)
    futures_as_arguments = True

    def executors(self, workers):
        from parsl.executors import HighThroughputExecutor
        from parsl.providers import LocalProvider

        provider = LocalProvider(init_blocks=1, max_blocks=1)
        return HighThroughputExecutor(address="127.0.0.1", max_workers_per_node=workers, provider=provider, encrypted=False)

    def open(self, workers, folder):
        import parsl
        from parsl.config import Config

        logging.getLogger("parsl").setLevel(logging.ERROR)
        config = Config(
            executors=[self.executors(workers)], run_dir=folder, strategy="none", initialize_logging=False,
        )
        self.kernel = parsl.load(config)
        self.apps = {}
        return self

    def submit(self, function, *arguments):
        app = self.apps.get(function)
        if app is None:
            import parsl

            app = self.apps[function] = parsl.python_app(function)
        return app(*arguments)

    def close(self):
        import parsl

        self.kernel.cleanup()
        parsl.clear()


class ParslThreads(Parsl):
    def executors(self, workers):
        from parsl.executors import ThreadPoolExecutor

        return ThreadPoolExecutor(max_threads=workers)


class Dask(Chunks, Peer):
    packages = ("distributed",)
    futures_as_arguments = True

    def open(self, workers, folder):
        import dask
        import distributed

        dask.config.set({"temporary-directory": folder, "distributed.logging.distributed": "error"})
        self.cluster = distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=logging.ERROR,
        )
        self.client = distributed.Client(self.cluster)
        self.client.wait_for_workers(workers)
        return self

    def submit(self, function, *arguments):
        # Dask must not reuse the result of an earlier call with the same arguments.
        return self.client.submit(function, *arguments, pure=False)

    def results(self, futures):
        return self.client.gather(futures)

    def close(self):
        self.client.close()
        self.cluster.close()


class Ray(Chunks, Peer):
    packages = ("ray",)
    futures_as_arguments = True

    def open(self, workers, folder):
        import ray

        self.get = ray.get
        self.remote = ray.remote
        self.functions = {}
        ray.init(
            num_cpus=workers, include_dashboard=False, configure_logging=False, log_to_driver=False, _temp_dir=folder,
            object_store_memory=512 * 1024 * 1024,
        )
        return self

    def submit(self, function, *arguments):
        known = self.functions.get(function)
        if known is None:
            known = self.functions[function] = self.remote(function)
        return known.remote(*arguments)

    def result(self, future):
        return self.get(future)

    def results(self, futures):
        return self.get(futures)

    def close(self):
        import ray

        ray.shutdown()


class HyperQueue(Chunks, Peer):
    """Tasks as a job, submitted when the first result is requested; no result returns to the program."""

    packages = ("hyperqueue",)
    futures_as_arguments = True
    returns_results = False

    def open(self, workers, folder):
        import tqdm
        import hyperqueue
        import hyperqueue.client
        from hyperqueue.cluster import LocalCluster, WorkerConfig
        from hyperqueue.task.function import PythonEnv

        # Otherwise a progress bar is drawn for each round trip of a task.
        hyperqueue.client.tqdm = lambda **options: tqdm.tqdm(**options, disable=True)
        self.new_job = lambda: hyperqueue.Job(default_workdir=folder)
        self.cluster = LocalCluster(os.path.join(folder, "server"), WorkerConfig(cores=workers))
        self.client = self.cluster.client(python_env=PythonEnv(python_bin=sys.executable))
        self.job = self.new_job()
        self.task = type(self.job.function(print))
        self.job = self.new_job()
        return self

    def submit(self, function, *arguments):
        needs = [argument for argument in arguments if isinstance(argument, self.task)]
        plain = [0 if isinstance(argument, self.task) else argument for argument in arguments]
        return self.job.function(function, args=plain, deps=needs, stdout=None, stderr=None)

    def result(self, future):
        job, self.job = self.job, self.new_job()
        submitted = self.client.submit(job)
        self.client.wait_for_jobs([submitted])
        self.client.forget(submitted)

    def results(self, futures):
        self.result(None)
        return [None] * len(futures)

    def close(self):
        self.cluster.stop()


PEERS = {
    "hotlease": Hotlease,
    "process_pool": ProcessPool,
    "loky": Loky,
    "mpi4py": Mpi,
    "parsl_htex": Parsl,
    "parsl_threads": ParslThreads,
    "dask": Dask,
    "ray": Ray,
    "hyperqueue": HyperQueue,
}


def temporary_folder():
    """A temporary folder with a short path: sockets are in it, whose paths have 108 bytes at most."""
    return tempfile.TemporaryDirectory(prefix="peer-", dir="/tmp", ignore_cleanup_errors=True)
