"""The run: kernels become tasks, every task gets its first trials, then those that promise most get more."""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tvmstack import schedules
from tvmstack.board.watch import Boards
from tvmstack.core.device import Device
from tvmstack.core.errors import TuningError
from tvmstack.core.kernel import Choice, Kernel, site_kernel
from tvmstack.store import KeyContext, Record, Store
from tvmstack.store.record import OK
from tvmstack.tuning.board_pool import BoardPool
from tvmstack.tuning.model import CostModel
from tvmstack.tuning.pool import MachineChanged, Pool, WorkerLost
from tvmstack.tuning.report import Progress, TaskReport, TuningReport
from tvmstack.tuning.search import Search
from tvmstack.tuning.seeds import adapted
from tvmstack.tuning.sketches import Sketches

__all__ = ["tune"]

_log = logging.getLogger(__name__)

_FIRST, _BATCH = 5, 8
# Starting points taken from neighbours; all are measured in the first round.
_SEEDS = 3
# How many of the store's latest records teach the cost model before the first trial.
_LESSONS = 4000
# The last part of a time budget is kept for measuring the finalists again, in turns with the default.
_FINAL_SHARE, _FINAL_ROUNDS, _FINALISTS = 0.15, 3, 2
_NOISE = 0.02
# A candidate this many times slower than the best in its first repeat gets no other.
_HOPELESS = 1.3
# An algorithm whose best kernels take this many times as long as another's gets no more trials.
_BEHIND = 1.25
# How long beyond the budget the comparison of algorithms may take.
_GRACE_S = 10.0
# How long what a run has claimed stays its own if it dies, and how long it waits where others have claimed everything.
_CLAIM_S, _PAUSE_S = 300.0, 0.2
# Kernels without a template are searched by MetaSchedule's sketches from this share of a model's operations on.
_SKETCH_SHARE = 0.02


@dataclass
class _Task:
    """Kernels of one workload, and the state of their search."""

    kernel: Kernel
    calls: int
    search: Search
    is_alternative: bool = False
    trials: int = 0
    final: Choice | None = None
    note: str = ""
    slots: dict[str, int] = field(default_factory=dict)
    choices: dict[str, Choice] = field(default_factory=dict)
    users: Mapping[str, int] = field(default_factory=dict)
    known: int = 0
    failed: int = 0
    steps: list[tuple[float, int, float]] = field(default_factory=list)

    @property
    def site(self) -> str:
        """The convolution this task's kernel is one algorithm of, or ""."""
        return self.kernel.site

    @property
    def winner(self) -> Choice:
        """The choice a build would use."""
        best = self.search.best
        return self.final or (self.choices.get(best[0]) if best else None) or self.search.default

    @property
    def weight_s(self) -> float:
        """Seconds of one inference that this task takes now."""
        best = self.search.best
        return self.calls * best[1] if best else 0.0

    @property
    def hope(self) -> float:
        """The part of its time that a round may save: less the more was seen and the longer nothing was gained."""
        seen = len(self.search.times) / max(self.search.size, 1)
        return (1.0 - min(seen, 0.95)) / (1.0 + self.search.stale) ** 2

    def note_step(self, elapsed_s: float, trials: int, best_s: float | None) -> None:
        """Keep a point of the curve of the best time, where it changed."""
        if best_s is not None and (not self.steps or self.steps[-1][2] != best_s):
            self.steps.append((round(elapsed_s, 3), trials, best_s))


class _Run:
    """One tuning run."""

    def __init__(
        self,
        tasks: list[_Task],
        store: Store,
        context: KeyContext,
        pool: Pool,
        seconds: float | None,
        trials: int | None,
        show: Callable[[Progress], None] | None,
    ) -> None:
        self.tasks, self.store, self.context, self.pool = tasks, store, context, pool
        self.rivals = _rivals(tasks)
        self.settled: dict[str, str] = {}
        self.models = tuple(dict.fromkeys(m for t in tasks for m in t.users))
        self.owner = uuid.uuid4().hex
        self.start = time.monotonic()
        self.deadline = self.start + seconds if seconds else math.inf
        self.search_until = self.start + seconds * (1 - _FINAL_SHARE) if seconds else math.inf
        self.budget = trials if trials else math.inf
        self.trials, self.failures, self.show = 0, Counter[str](), show
        for task in tasks:
            task.note_step(0.0, 0, task.search.best[1] if task.search.best else None)

    def search(self) -> None:
        """Give every task its first trials, then the most promising ones more, two tasks a round."""
        fresh = [t for t in self.tasks if t.search.default.text not in t.search.times]
        while fresh and self._may_search():
            self._round(fresh[: self._width()], _FIRST)
            fresh = fresh[self._width() :]
        while self._may_search():
            open_tasks = [t for t in self.tasks if not t.search.is_done and self._in_running(t)]
            if not open_tasks:
                break
            totals = self._model_seconds()
            ranked = sorted(open_tasks, key=lambda t: -t.hope * _share(t, totals))
            self._round(ranked[: self._width()], _BATCH)

    def _in_running(self, task: _Task) -> bool:
        """Whether the task has a time, and none that another algorithm beats by far."""
        if task.search.best is None:
            return False
        rivals = self.rivals.get(task.site, {})
        times = [_site_seconds(tasks) for tasks in rivals.values()]
        mine = _site_seconds(rivals[task.kernel.algorithm]) if rivals else 0.0
        return not times or mine <= _BEHIND * min(times)

    def _width(self) -> int:
        return max(2, self.context.device.cores)

    def _may_search(self) -> bool:
        return time.monotonic() < self.search_until and self.trials < self.budget

    def _round(self, tasks: Sequence[_Task], count: int) -> None:
        room = self.budget - self.trials
        jobs: list[tuple[_Task, list[Choice]]] = []
        for task in tasks:
            proposed = task.search.propose(int(min(count, room)))
            choices = self._claimed(task, proposed)
            room -= len(choices)
            if choices:
                jobs.append((task, choices))
            elif not proposed:
                task.search.stale += 1
        if not jobs:
            time.sleep(_PAUSE_S)
        failures = self._build(jobs)
        for task, choices in jobs:
            records = self._measure_all(task, choices, failures[task.kernel.name])
            self.store.add(records)
            task.search.learn({r.choice.text: r.median_s for r in records})
            task.trials += len(records)
            self.trials += len(records)
            self._tell(task)

    def _claimed(self, task: _Task, choices: list[Choice]) -> list[Choice]:
        """Keep what no other run on this store is measuring, and take in what others have measured meanwhile."""
        claim = self.store.claim(task.kernel, self.context, choices, self.owner, _CLAIM_S)
        if claim.measured:
            task.choices.update({r.choice.text: r.choice for r in claim.measured})
            task.search.learn({r.choice.text: r.median_s for r in claim.measured})
        return claim.choices

    def _build(self, jobs: Sequence[tuple[_Task, list[Choice]]]) -> dict[str, dict[int, str]]:
        wanted = []
        for task, choices in jobs:
            default = task.search.default
            if not self.pool.knows(task.kernel) and default not in choices:
                choices = [default, *choices]
            for choice in choices:
                task.slots.setdefault(choice.text, len(task.slots))
                task.choices[choice.text] = choice
            wanted.append((task.kernel, {task.slots[c.text]: c for c in choices}))
        return self.pool.build_all(wanted)

    def _measure_all(self, task: _Task, choices: Sequence[Choice], failures: dict[int, str]) -> list[Record]:
        """Measure a batch, and keep when the best of it was found."""
        records: list[Record] = []
        best = task.search.best[1] if task.search.best else math.inf
        for choice in choices:
            records.append(self._measure(task, choice, failures))
            best = min(best, records[-1].median_s)
            if math.isfinite(best):
                task.note_step(self._elapsed(), task.trials + len(records), best)
        return records

    def _elapsed(self) -> float:
        return time.monotonic() - self.start

    def _measure(self, task: _Task, choice: Choice, failures: dict[int, str]) -> Record:
        slot = task.slots[choice.text]
        if slot in failures:
            return self._failed(task, choice, failures[slot])
        try:
            best = task.search.best
            times = self._run_one(task, choice, _HOPELESS * best[1] if best else None)
        except WorkerLost as lost:
            return self._failed(task, choice, f"run: {lost}")
        except TuningError as err:
            return self._failed(task, choice, str(err))
        return self._record(task, choice, times)

    def _run_one(self, task: _Task, choice: Choice, limit_s: float | None = None) -> list[float]:
        """Run a choice, once more where the machine was lost under it."""
        try:
            return self._run_with_reference(task, choice, limit_s)
        except MachineChanged as changed:
            _log.info("%s", changed)
            return self._run_with_reference(task, choice, limit_s)

    def _run_with_reference(self, task: _Task, choice: Choice, limit_s: float | None) -> list[float]:
        """Run a choice; what a lost worker held is built again, and the default runs first: it gives the values."""
        kernel, default = task.kernel, task.search.default
        is_default = choice == default
        needed = [choice] if is_default or self.pool.has_reference(kernel) else [default, choice]
        missing = [c for c in needed if c.text not in task.slots or not self.pool.holds(kernel, task.slots[c.text])]
        failures = self._build([(task, missing)])[kernel.name] if missing else {}
        for needs in needed:
            if task.slots[needs.text] in failures:
                raise TuningError(failures[task.slots[needs.text]])
        if not is_default and not self.pool.has_reference(kernel):
            self.pool.run(kernel, task.slots[default.text], True)
        return self.pool.run(kernel, task.slots[choice.text], is_default, limit_s)

    def _failed(self, task: _Task, choice: Choice, reason: str) -> Record:
        self.failures[reason.split(":")[0]] += 1
        task.failed += 1
        _log.debug("%s %s: %s", task.kernel.name, choice.text, reason)
        return self._record(task, choice, [], reason)

    def _record(
        self, task: _Task, choice: Choice, times: Sequence[float], status: str = OK, final: bool = False
    ) -> Record:
        is_default = choice == task.search.default
        return _record(self.context, task.kernel, choice, times, status, final=final, is_default=is_default)

    def finish(self) -> None:
        """Measure each task's finalists again, in turns with its default, which wins unless it is clearly beaten."""
        totals = self._model_seconds()
        for task in sorted(self.tasks, key=lambda t: -_share(t, totals)):
            if time.monotonic() > self.deadline:
                break
            if task.trials and self._in_running(task):
                self._finals(task)
        for site, algorithms in self.rivals.items():
            if time.monotonic() > self.deadline + _GRACE_S:
                break
            self._settle(site, algorithms)

    def _finals(self, task: _Task) -> None:
        default = task.search.default
        ranked = sorted((t for t in task.search.times if t in task.choices), key=lambda t: task.search.times[t])
        finalists = [task.choices[t] for t in ranked if t != default.text][:_FINALISTS]
        finalists = [c for c in finalists if math.isfinite(task.search.times[c.text])]
        contenders = [default, *finalists]
        times: dict[str, list[float]] = {c.text: [] for c in contenders}
        try:
            for _ in range(_FINAL_ROUNDS):
                for choice in contenders:
                    times[choice.text] += self._run_one(task, choice)
        except (WorkerLost, TuningError) as err:
            task.note = f"finalists not measured again: {err}"
            return
        limit = float(np.median(times[default.text])) * (1 - _NOISE)
        winners = [c for c in finalists if float(np.median(times[c.text])) < limit]
        kept = [default, *winners]
        self.store.add([self._record(task, c, times[c.text], final=True) for c in kept])
        task.search.times.update({c.text: float(np.median(times[c.text])) for c in contenders})
        task.note_step(self._elapsed(), task.trials, task.search.best[1] if task.search.best else None)
        task.final = min(kept, key=lambda c: float(np.median(times[c.text])))
        task.note = "" if winners else "the default is as good"

    def _settle(self, site: str, algorithms: dict[str, list[_Task]]) -> None:
        """Measure the algorithms of a convolution in turns, each by its best schedules, and record what each takes."""
        entrants = {a: tasks for a, tasks in algorithms.items() if all(t.search.best for t in tasks)}
        entrants = {a: tasks for a, tasks in entrants.items() if all(self._in_running(t) for t in tasks)}
        if len(entrants) < 2 or not any(t.trials for tasks in entrants.values() for t in tasks):
            return
        rounds: dict[str, list[float]] = {a: [] for a in entrants}
        try:
            for _ in range(_FINAL_ROUNDS):
                for algorithm, tasks in entrants.items():
                    runs = [t.calls * float(np.median(self._run_one(t, t.winner))) for t in tasks]
                    rounds[algorithm].append(sum(runs))
        except (WorkerLost, TuningError) as err:
            _log.warning("the algorithms of %s were not compared: %s", site, err)
            return
        kernel = site_kernel(site)
        now = next(a for a, tasks in algorithms.items() if not tasks[0].is_alternative)
        limit = float(np.median(rounds[now])) * (1 - _NOISE) if now in rounds else math.inf
        kept = [a for a in rounds if a == now or float(np.median(rounds[a])) < limit]
        choices = {a: Choice("algorithm", {"name": a}) for a in kept}
        self.store.add([_record(self.context, kernel, choices[a], rounds[a], is_default=a == now) for a in kept])
        best = min(kept, key=lambda a: float(np.median(rounds[a])))
        self.settled[site] = best
        for algorithm, tasks in algorithms.items():
            for task in tasks:
                task.note = "" if algorithm == best else f"not used: {best} is faster"

    def _tell(self, task: _Task) -> None:
        if self.show is None:
            return
        start, best = self._totals()
        failed, models = sum(self.failures.values()), self.models if "" not in self.models else ()
        self.show(Progress(self._elapsed(), self.trials, start, best, failed, task.kernel.name, models))

    def _totals(self) -> tuple[float, float]:
        """Return the seconds of an inference by default schedules and by the best ones, as far as measured."""
        start = sum(t.calls * _default_s(t) for t in self._own())
        return start, sum(t.weight_s for t in self.used())

    def used(self) -> list[_Task]:
        """Return the tasks that a build would use, as far as measured: of each convolution those of one algorithm."""
        mine = [t for t in self.tasks if t.search.best]
        for site, algorithms in self.rivals.items():
            now = next(a for a, tasks in algorithms.items() if not tasks[0].is_alternative)
            times = {a: _site_seconds(tasks) for a, tasks in algorithms.items()}
            chosen = min(times, key=lambda a: times[a]) if math.isfinite(times[now]) else now
            chosen = self.settled.get(site, chosen)
            left = {id(t) for a, tasks in algorithms.items() if a != chosen for t in tasks}
            mine = [t for t in mine if id(t) not in left]
        compared = {id(t) for algorithms in self.rivals.values() for tasks in algorithms.values() for t in tasks}
        return [t for t in mine if not t.is_alternative or id(t) in compared]

    def _model_seconds(self) -> dict[str, float]:
        """Return the seconds of one inference of each model by the best schedules, as far as measured."""
        totals = dict.fromkeys(self.models, 0.0)
        for task in self.used():
            for model, calls in task.users.items():
                totals[model] += calls * (task.search.best[1] if task.search.best else 0.0)
        return totals

    def report(self, seconds: float) -> TuningReport:
        """Return what the run did."""
        totals, used = self._model_seconds(), {id(t) for t in self.used()}
        rows = tuple(_row(t, _share(t, totals, max) if id(t) in used else 0.0) for t in self.tasks)
        stages = {k: round(v, 2) for k, v in self.pool.seconds.items()}
        models = {}
        if "" not in self.models:
            starts = {m: sum(t.users.get(m, 0) * _default_s(t) for t in self._own()) for m in self.models}
            models = {m: (starts[m], totals[m]) for m in self.models}
        return TuningReport(self.trials, seconds, rows, dict(self.failures), stages, models=models)

    def _own(self) -> list[_Task]:
        return [t for t in self.tasks if t.search.best and not t.is_alternative]


def _default_s(task: _Task) -> float:
    start = task.search.start_s or 0.0
    return start if math.isfinite(start) else 0.0


def _share(task: _Task, totals: Mapping[str, float], over: Callable[[list[float]], float] = sum) -> float:
    """Return the task's part of an inference's time, put together `over` the models that it is a kernel of."""
    if task.search.best is None:
        return 0.0
    each = task.search.best[1]
    parts = [calls * each / totals[m] if totals.get(m) else 0.0 for m, calls in task.users.items()]
    return over(parts) if parts else 0.0


def _rivals(tasks: Sequence[_Task]) -> dict[str, dict[str, list[_Task]]]:
    """Return the tasks of each convolution that is to be computed by several algorithms, by algorithm."""
    found: dict[str, dict[str, list[_Task]]] = {}
    for task in tasks:
        if task.site:
            found.setdefault(task.site, {}).setdefault(task.kernel.algorithm, []).append(task)
    rivals = {}
    for site, algorithms in found.items():
        now = [a for a, these in algorithms.items() if not any(t.is_alternative for t in these)]
        calls = {a: sum(t.calls for t in these) for a, these in algorithms.items()}
        same = {a: these for a, these in algorithms.items() if now and calls[a] == calls[now[0]]}
        if len(same) > 1:
            rivals[site] = same
    return rivals


def _site_seconds(tasks: Sequence[_Task]) -> float:
    return sum(t.weight_s if t.search.best else math.inf for t in tasks)


def _record(
    context: KeyContext,
    kernel: Kernel,
    choice: Choice,
    times: Sequence[float],
    status: str = OK,
    final: bool = True,
    is_default: bool = False,
) -> Record:
    low, median, high = np.percentile(times, [25, 50, 75]) if len(times) else (0.0, math.inf, 0.0)
    return Record(
        workload=kernel.workload,
        template=kernel.template,
        choice=choice,
        status=status,
        median_s=float(median),
        spread_s=float(high - low),
        is_default=is_default,
        is_final=final,
        when=time.time(),
        **context.fields,
    )


def tune(
    kernels: Sequence[Kernel],
    device: Device,
    pipeline_digest: str,
    store: Store,
    *,
    seconds: float | None = None,
    trials: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    alternatives: Sequence[Kernel] = (),
    boards: Boards | None = None,
    users: Mapping[str, Mapping[str, int]] | None = None,
) -> TuningReport:
    """Measure schedules of the kernels into the store until the time or the trials are used up.

    `alternatives` are kernels of other algorithms for the same convolutions; which is the fastest is recorded too.
    Every batch is committed before the next begins; a second call goes on from what the store holds. With `boards`
    candidates run there; when one is lost, another of its class goes on. Kernels may be of several models: `users` then
    says by workload how often an inference of each model runs it, and a second of a model counts by that model's time,
    so that a small model gets its part beside a large one.

    Raises:
        BoardLost: the last board is gone.
        TuningError: the store cannot be written. KeyboardInterrupt passes through with everything measured kept.
    """
    context = KeyContext.current(device, pipeline_digest)
    tasks = _tasks(kernels, alternatives, device, store, context, users)
    pool = BoardPool(device, boards) if boards is not None else Pool(device)
    run = _Run(tasks, store, context, pool, seconds, trials, progress)
    try:
        run.search()
        run.finish()
    finally:
        pool.close()
        store.release_claims(run.owner)
    return run.report(time.monotonic() - run.start)


def _tasks(
    kernels: Sequence[Kernel],
    alternatives: Sequence[Kernel],
    device: Device,
    store: Store,
    context: KeyContext,
    users: Mapping[str, Mapping[str, int]] | None,
) -> list[_Task]:
    """Cut tasks: one a workload, those that cannot repay trials left out, what the store holds taken in."""
    calls: Counter[str] = Counter()
    extra = {k.workload for k in alternatives}
    for kernel in (*kernels, *alternatives):
        calls[kernel.workload] += kernel.calls
    mine = users or {workload: {"": times} for workload, times in calls.items()}
    shares = _flop_shares(kernels, alternatives, mine)
    model = _taught(store, context, extra | {k.workload for k in kernels})
    tasks = []
    for workload, kernel in {k.workload: k for k in (*kernels, *alternatives)}.items():
        pool = [Choice(kernel.template, d) for d in schedules.candidates(kernel.func, device)]
        default = schedules.default_choice(kernel.func, device)
        if pool:
            search = Search(kernel, default, pool, model)
        elif kernel.template == "generic" and shares[workload] >= _SKETCH_SHARE:
            search = Sketches(kernel, default, device)
        else:
            continue
        search.seeds = adapted((r.choice for r in store.neighbours(kernel, context)), pool, _SEEDS)
        task = _Task(kernel, calls[workload], search, is_alternative=workload in extra, users=mine[workload])
        known_records = store.trials(kernel, context)
        for record in known_records:
            search.times[record.choice.text] = record.median_s
            task.choices[record.choice.text] = record.choice
        task.known = len(search.times)
        model.learn(kernel.template, workload, ((r.choice, r.median_s) for r in known_records))
        tasks.append(task)
    return sorted(tasks, key=lambda t: -shares[t.kernel.workload])


def _flop_shares(
    kernels: Sequence[Kernel], alternatives: Sequence[Kernel], users: Mapping[str, Mapping[str, int]]
) -> dict[str, float]:
    """Return each workload's part of the operations of a model, of several models the largest."""
    flops = {k.workload: k.flops for k in (*alternatives, *kernels)}
    totals: dict[str, float] = {}
    for workload in {k.workload for k in kernels}:
        for name, calls in users[workload].items():
            totals[name] = totals.get(name, 0.0) + calls * flops[workload]
    return {
        workload: max((calls * flops[workload] / (totals.get(name) or 1.0) for name, calls in users[workload].items()))
        for workload in flops
    }


def _taught(store: Store, context: KeyContext, mine: Collection[str]) -> CostModel:
    """Return a cost model that knows what was measured of other kernels: the store's latest records, the shipped."""
    model = CostModel()
    lessons: dict[tuple[str, str], list[tuple[Choice, float]]] = {}
    for record in (*store.records(_LESSONS), *store.shipped_records()):
        if record.status == OK and record.schedules == context.schedules and record.workload not in mine:
            lessons.setdefault((record.template, record.workload), []).append((record.choice, record.median_s))
    for (template, workload), times in lessons.items():
        model.learn(template, workload, times)
    return model


def _row(task: _Task, share: float) -> TaskReport:
    best, start = task.search.best, task.search.start_s
    finite = start if start is not None and math.isfinite(start) else None
    return TaskReport(
        name=task.kernel.name,
        calls=task.calls,
        trials=task.trials,
        start_s=finite,
        best_s=best[1] if best else None,
        note=task.note,
        share=share,
        known=task.known,
        seeds=_seeds_measured(task),
        failed=task.failed,
        steps=tuple(task.steps),
        models={name: calls for name, calls in task.users.items() if name},
    )


def _seeds_measured(task: _Task) -> int:
    return sum(seed.text in task.search.times for seed in task.search.seeds)
