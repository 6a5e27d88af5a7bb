"""A fixed number of threads for the copies of one mover: many small files at once, or many ranges of few large ones."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator

Task = Callable[[], None]


class _Batch:
    """Pieces of one task: how many are not done, and the first error."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.error: BaseException | None = None


class Crew:
    """Runs tasks on ``size`` threads; a task may split itself into pieces, for which idle threads are used first.

    Tasks are taken from an iterator one by one, so that a hundred thousand of them cost nothing before their turn.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._condition = threading.Condition()
        self._pieces: deque[tuple[_Batch, Task]] = deque()
        self._tasks: Iterator[Task] = iter(())
        self._busy = 0
        self._error: BaseException | None = None

    def run(self, tasks: Iterator[Task], on_error: Callable[[], None]) -> None:
        """Run all and raise the first error; ``on_error`` is called at once, so that running tasks can end early."""
        self._tasks, self._error = tasks, None
        threads = [threading.Thread(target=self._work, args=(on_error,), name="stage") for _ in range(self._size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def share(self, pieces: list[Task]) -> None:
        """Run pieces of the calling task here and on idle threads; return when none runs any more.

        After an error no further piece is started, and the error is raised.
        """
        batch = _Batch(len(pieces))
        with self._condition:
            self._pieces.extend((batch, piece) for piece in pieces)
            self._condition.notify_all()
        while piece := self._own(batch):
            self._run_piece(batch, piece)
        with self._condition:
            self._condition.wait_for(lambda: batch.left == 0)
        if batch.error is not None:
            raise batch.error

    def _own(self, batch: _Batch) -> Task | None:
        """Take a piece of this batch; other pieces belong to tasks whose threads run them."""
        with self._condition:
            for index, (owner, piece) in enumerate(self._pieces):
                if owner is batch:
                    del self._pieces[index]
                    return piece
        return None

    def _run_piece(self, batch: _Batch, piece: Task) -> None:
        failure: BaseException | None = None
        try:
            if batch.error is None:
                piece()
        except BaseException as error:  # noqa: BLE001 -- raised by share() in the thread that owns the batch
            failure = error
        with self._condition:
            batch.error = batch.error or failure
            batch.left -= 1
            self._condition.notify_all()

    def _work(self, on_error: Callable[[], None]) -> None:
        while task := self._take():
            failure: BaseException | None = None
            try:
                task()
            except BaseException as error:  # noqa: BLE001 -- raised by run()
                failure = error
            with self._condition:
                self._busy -= 1
                is_first = failure is not None and self._error is None
                self._error = self._error or failure
                self._condition.notify_all()
            if is_first:
                on_error()

    def _take(self) -> Task | None:
        """Return a piece that waits, else the next task; wait while a running task may still split itself."""
        with self._condition:
            while True:
                if self._pieces:
                    batch, piece = self._pieces.popleft()
                    self._busy += 1
                    return lambda: self._run_piece(batch, piece)
                if self._error is None and (task := self._next()):
                    self._busy += 1
                    return task
                if not self._busy:
                    return None
                self._condition.wait()

    def _next(self) -> Task | None:
        try:
            return next(self._tasks, None)
        except BaseException as error:  # noqa: BLE001 -- raised by run()
            self._error = error
            return None
