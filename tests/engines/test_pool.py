"""Workers that end, stop or hang are replaced with bit-identical results; threads can share a pool."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection

import pytest
from small_cohort import built, clients

from homespun.core import tree
from homespun.core.errors import WorkerError
from homespun.core.messages import pack
from homespun.engines import cohort, pool
from homespun.engines.client import Client
from homespun.engines.cohort import CohortTrainer
from homespun.engines.exchange import clients_to_tensors, outputs_from_reply
from homespun.engines.pool import Watch, WorkerPool, broadcast_message, cpu_time, setup_message
from homespun.engines.worker import serve

LARGE = {"hidden_dim": 700}  # a broadcast of 3 MB: more than a socket's buffer holds


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def impatient(monkeypatch):
    """A pool of two workers that are replaced after two seconds without progress."""
    made = WorkerPool(2, patience_s=2.0)
    monkeypatch.setattr(cohort, "shared_pool", lambda _: made)
    yield made
    made.close()


def bits(outcome):
    private = {user: tree.to_bytes(own) for user, own in outcome.private.items()}
    return tree.to_bytes(outcome.update.federated), private, outcome.update.metrics, outcome.rejected


def work(made, *, workers, seed=0):
    return bits(CohortTrainer(made, seed, workers=workers).train(made.start().broadcast(), clients(made)))


@pytest.mark.system
@pytest.mark.parametrize("settings", [{}, LARGE], ids=["small", "large"])
def test_a_stopped_worker_is_replaced_with_bit_identical_results(impatient, capfd, settings):
    """Stopped before the round starts: a large broadcast cannot even be sent completely."""
    made = built(**settings)
    stopped = impatient.workers[0].pid
    os.kill(stopped, signal.SIGSTOP)
    assert work(made, workers=2) == work(made, workers=0)
    printed = capfd.readouterr().err
    assert f"homespun: worker process {stopped} used no CPU time for 2 s; it is replaced" in printed
    assert not alive(stopped) and impatient.workers[0].pid != stopped


@pytest.mark.system
@pytest.mark.parametrize(
    ("sign", "cause"), [(signal.SIGSTOP, "used no CPU time for 2 s"), (signal.SIGKILL, "ended with -9")]
)
def test_a_worker_that_is_stopped_or_killed_while_training_is_replaced(impatient, capfd, monkeypatch, sign, cause):
    made, victim, packed = built(), impatient.workers[0].pid, []

    def pack_then_signal(chunk):
        packed.append(chunk)
        if len(packed) == 2:  # one worker has the first chunk, another asks for the second
            os.kill(victim, sign)
        return clients_to_tensors(chunk)

    expected = work(made, workers=0)
    monkeypatch.setattr(cohort, "clients_to_tensors", pack_then_signal)
    assert work(made, workers=2) == expected
    assert f"worker process {victim} {cause}; it is replaced" in capfd.readouterr().err


@pytest.mark.system
def test_a_slow_worker_is_not_replaced(impatient, capfd):
    """It works for more than two seconds and uses CPU time throughout."""
    made = built(local_epochs=150)
    pids = [worker.pid for worker in impatient.workers]
    started = time.monotonic()
    work(made, workers=2)
    assert time.monotonic() - started > 2.0
    assert [worker.pid for worker in impatient.workers] == pids and capfd.readouterr().err == ""


@pytest.mark.system
def test_workers_that_keep_ending_are_an_error(monkeypatch, capfd):
    monkeypatch.setattr(pool.sys, "executable", "/bin/false")  # every process ends at once
    monkeypatch.setattr(pool, "REPLACEMENTS", 2)
    made, broken = built(), WorkerPool(1)
    job = {"setup": setup_message(made, 0), "broadcast": broadcast_message(made.start().broadcast())}
    with pytest.raises(WorkerError, match=r"ended with 1, after 2 others were replaced(.|\n)*workers=1"):
        broken.run([b"anything"], **job)
    assert capfd.readouterr().err.count("it is replaced") == 2
    monkeypatch.undo()
    message = pack({"kind": "predict", "users": ["ann"]}, clients_to_tensors(clients(made, [0])))
    ((_, tensors),) = broken.run([message], **job)  # a pool recovers
    assert outputs_from_reply(tensors, clients(made, [0]))[0].shape[1] == 8
    broken.close()


@pytest.mark.system
def test_two_threads_share_the_workers_without_mixing_messages():
    """Each trains a different model, so that a mixed-up broadcast or reply would be detected."""
    models = {"narrow": built(hidden_dim=8, seed=1), "wide": built(hidden_dim=16, seed=2)}
    alone = {name: work(made, workers=0) for name, made in models.items()}
    found, errors = {name: [] for name in models}, []

    def train(name):
        try:
            for _ in range(4):
                found[name].append(work(models[name], workers=2))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=train, args=(name,), daemon=True) for name in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == [] and not any(thread.is_alive() for thread in threads)
    assert found == {name: [alone[name]] * 4 for name in models}


def test_checks_without_progress_are_counted_not_seconds():
    watch = Watch(patience=2)
    assert [watch.is_stalled(7, ticks) for ticks in (5, 5, 6, 6, 6)] == [False, False, False, False, True]
    assert [watch.is_stalled(8, None) for _ in range(9)] == [False] * 9  # unknown CPU time counts as progress


@pytest.mark.skipif(sys.platform != "linux", reason="CPU time is read from /proc")
def test_cpu_time_grows_with_work_and_is_unknown_without_a_process():
    before = cpu_time(os.getpid())
    started = time.process_time()
    while time.process_time() < started + 0.05:
        pass
    assert before + 3 <= cpu_time(os.getpid())  # ticks of 10 ms
    assert cpu_time(2**22 + 1) is None


@pytest.mark.system
def test_a_file_named_like_a_library_in_the_current_folder_is_not_imported(tmp_path, capfd):
    (tmp_path / "struct.py").write_text("raise SystemExit('imported from the current folder')")
    single, made = WorkerPool(1), built()  # in tmp_path: see conftest
    message = pack({"kind": "predict", "users": ["ann"]}, clients_to_tensors(clients(made, [0])))
    job = {"setup": setup_message(made, 0), "broadcast": broadcast_message(made.start().broadcast())}
    assert len(single.run([message], **job)) == 1 and capfd.readouterr().err == ""
    single.close()


@pytest.mark.system
def test_an_error_in_a_worker_reports_its_cause():
    made = built()
    broken = clients(made)
    broken[3] = Client(broken[3].user, broken[3].private, {k: v for k, v in broken[3].data.items() if k != "text"})
    with pytest.raises(WorkerError, match="KeyError"):
        CohortTrainer(made, 0, workers=2).train(made.start().broadcast(), broken)


@pytest.mark.system
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("after_s", [0.1, 3.0])  # while starting, and while waiting for work
def test_workers_die_with_their_parent(sign, after_s):
    script = (
        "import time; from homespun.engines.pool import WorkerPool; pool = WorkerPool(2);"
        "print(*[worker.pid for worker in pool.workers], flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    time.sleep(after_s)
    assert all(alive(pid) for pid in pids)
    parent.send_signal(sign)
    parent.wait()
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in pids)


@pytest.mark.system
def test_closing_a_pool_ends_its_processes():
    single = WorkerPool(1)
    pid = single.workers[0].pid
    single.close()
    assert not alive(pid) and single.workers == []


def test_a_worker_whose_caller_is_gone_ends_silently():
    """After Ctrl-C no caller waits for the pending answer."""
    ours, theirs = socket.socketpair()
    with Connection(ours.detach()) as caller:
        caller.send_bytes(b"whatever needs an answer, if only an error")
    serve(theirs.detach())
