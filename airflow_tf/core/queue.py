"""Who may pass whom in the queue for a host's devices: what gangs that came earlier need is kept for them.

A later gang may take a device that an earlier one could use only if the earlier one has enough without it, now or at
the earliest moment at which declared time limits let it have all its devices, or if the later one has ended by then.
Each waiting gang books its devices from that moment on, in the order of the queue (conservative backfilling). A gang
whose moment no limit tells keeps everything that is free and that it could use.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_tf.core.devices import DeviceRequest
from airflow_tf.core.matching import WHOLE_PERCENT, Offer, count_parts, suits


@dataclass(frozen=True, slots=True)
class Use:
    """Part of a device that is in use, or booked, from ``start`` until ``end``; ``by`` is set for a booking."""

    start: float
    end: float
    percent: int
    by: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """A device as the queue sees it.

    :param offer: without regard to the queue.
    :param uses: of its holders; what cannot be used at all is used whole.
    """

    offer: Offer
    uses: tuple[Use, ...] = ()


@dataclass(frozen=True, slots=True)
class Waiter:
    """A gang in the queue: ``replicas`` of it have no devices yet."""

    label: str
    request: DeviceRequest
    replicas: int
    waited_seconds: float
    time_limit_seconds: float | None = None

    @property
    def wanted(self) -> int:
        """Devices it waits for, or shares of devices."""
        return self.replicas * self.request.per_replica

    def __str__(self) -> str:
        """One line of a refusal."""
        devices = f"{self.wanted} device{'' if self.wanted == 1 else 's'}"
        return f"before it in the queue: {self.label} ({devices}, waiting {self.waited_seconds:.0f} s)"


def offers_behind(
    ahead: Iterable[Waiter],
    places: Sequence[Place],
    request: DeviceRequest,
    time_limit_seconds: float | None,
    now: float,
) -> list[Offer]:
    """Return what is left for a gang when all that is before it have what they need.

    :param ahead: gangs before it, the first one first.
    :param time_limit_seconds: within which it promises to end, if it does.
    :param now: seconds on the clock of all uses.
    """
    timetable = _Timetable(places, request, now)
    for waiter in ahead:
        timetable.book(waiter)
    end = now + (math.inf if time_limit_seconds is None else time_limit_seconds)
    return [timetable.offer(place, end) for place in places]


@dataclass
class _Timetable:
    """Who uses which device when, as far as limits tell."""

    places: Sequence[Place]
    request: DeviceRequest
    now: float
    bookings: dict[str, list[Use]] = field(default_factory=dict)

    def book(self, waiter: Waiter) -> None:
        """Give the waiter its devices from the earliest moment on at which it can have all."""
        length = math.inf if waiter.time_limit_seconds is None else waiter.time_limit_seconds
        for start in self._moments():
            parts = self._parts(waiter, start, start + length)
            if sum(parts.values()) >= waiter.wanted:
                self._take(waiter, parts, start, start + length)
                return
        self._take(waiter, self._parts(waiter, self.now, math.inf), self.now, math.inf)

    def offer(self, place: Place, end: float) -> Offer:
        """Return the device less what bookings leave no room for until ``end``."""
        offer = place.offer
        bookings = [use for use in self._of(place)[len(place.uses) :] if use.start < end]
        if not bookings or not count_parts(offer, self.request):
            return offer
        kept = _peak(self._of(place), self.now, end) - _peak(place.uses, self.now, self.now)
        if kept <= 0:
            return offer
        by = f"kept for {', '.join(dict.fromkeys(use.by for use in bookings))}"
        if WHOLE_PERCENT - offer.used_percent - kept < self.request.share_percent:
            return replace(offer, obstacle=f"{offer.reading.device.uuid} {by}")
        takers = f"{offer.takers}; {by}" if offer.takers else by
        return replace(offer, taken_percent=offer.taken_percent + kept, takers=takers)

    def _moments(self) -> list[float]:
        uses = [use for place in self.places for use in self._of(place)]
        return sorted({self.now} | {use.end for use in uses if self.now < use.end < math.inf})

    def _parts(self, waiter: Waiter, start: float, end: float) -> dict[str, int]:
        """Return uuid -> how many replicas can have their part; first of what the later gang cannot have now."""
        order = sorted(self.places, key=lambda place: (self._serves_later(place), place.offer.reading.device.index))
        return {
            place.offer.reading.device.uuid: parts
            for place in order
            if (parts := self._parts_of(place, waiter, start, end)) > 0
        }

    def _serves_later(self, place: Place) -> bool:
        return suits(place.offer.reading.device, self.request) and count_parts(place.offer, self.request) > 0

    def _parts_of(self, place: Place, waiter: Waiter, start: float, end: float) -> int:
        if not suits(place.offer.reading.device, waiter.request):
            return 0
        free = WHOLE_PERCENT - _peak(self._of(place), start, end)
        parts = min(free // waiter.request.share_percent, waiter.replicas)
        return min(parts, count_parts(place.offer, waiter.request)) if start <= self.now else parts

    def _take(self, waiter: Waiter, parts: Mapping[str, int], start: float, end: float) -> None:
        left = waiter.wanted
        for uuid, count in parts.items():
            taken = min(count, left)
            if taken:
                percent = taken * waiter.request.share_percent
                self.bookings.setdefault(uuid, []).append(Use(start, end, percent, waiter.label))
            left -= taken

    def _of(self, place: Place) -> list[Use]:
        return [*place.uses, *self.bookings.get(place.offer.reading.device.uuid, ())]


def _peak(uses: Sequence[Use], start: float, end: float) -> int:
    """Return the largest percentage in use at one moment from ``start`` until ``end``."""
    moments = [start, *(use.start for use in uses if start < use.start < end)]
    return max(sum(use.percent for use in uses if use.start <= moment < use.end) for moment in moments)
