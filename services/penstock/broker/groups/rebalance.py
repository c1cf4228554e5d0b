"""A group's way from one generation to the next, and the clocks that push it on.

    Empty --join--> PreparingRebalance --all there, or time up--> CompletingRebalance --assigned--> Stable
      ^                |       ^                                          |                           |
      +-- nobody came -+       +------- a member joins, leaves or dies, or its topics change ---------+

Requests (`membership.py`) and timers both come in on the event loop, so that each step is atomic.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial

from penstock.broker.groups.answers import (
    answer_join,
    answer_sync,
    joined,
    later,
    not_synced,
    refuse_join,
    synced,
)
from penstock.broker.groups.group import Group, Member
from penstock.broker.groups.journal import Entry, Journal
from penstock.broker.groups.model import Alarm, GroupSettings, Response, State, Timers
from penstock.broker.groups.schema import GroupKey, encode_group
from penstock.wire.errors import ErrorCode

log = logging.getLogger(__name__)


class Rebalance:
    def __init__(self, journal: Journal, settings: GroupSettings, timers: Timers) -> None:
        self._journal = journal
        self._settings = settings
        self._timers = timers

    # -- the join phase ---------------------------------------------------------------------------------

    def expect(self, group: Group, member_id: str, timeout_ms: int) -> None:
        """An id was handed out: a join phase waits for it, as long as a session."""
        alarm = group.pending[member_id] = Alarm()
        alarm.set(self._timers, timeout_ms, partial(self.stop_expecting, group, member_id))

    def stop_expecting(self, group: Group, member_id: str) -> None:
        group.pending.pop(member_id).cancel()
        if group.state is State.PREPARING:
            self._complete_join_if_all_are_here(group)

    def wait_for_generation(self, group: Group, member: Member) -> asyncio.Future[Response]:
        """The member takes part in the next generation, which this starts if it isn't being made yet."""
        waiting = member.joining = later()
        if group.state is State.PREPARING:
            self._complete_join_if_all_are_here(group)
        else:
            self._prepare(group)
        return waiting

    def _prepare(self, group: Group) -> None:
        log.info("group %s: rebalance after generation %d", group.group_id, group.generation)
        for member in group.members.values():
            if answer_sync(member, not_synced(ErrorCode.rebalance_in_progress)):
                self.keep_alive(group, member)
        group.unsynced.clear()
        group.sync_phase.cancel()
        group.first_join = group.state is State.EMPTY
        group.newcomers = False
        group.state = State.PREPARING
        if group.first_join:
            delay = self._settings.initial_rebalance_delay_ms
            self._delay_first_join(group, delay, max(group.rebalance_timeout_ms - delay, 0))
        else:
            self._limit_join(group)
            self._complete_join_if_all_are_here(group)

    def _limit_join(self, group: Group) -> None:
        group.join_phase.set(self._timers, group.rebalance_timeout_ms, partial(self._complete_join, group))

    def _delay_first_join(self, group: Group, delay_ms: int, remaining_ms: int) -> None:
        over = partial(self._first_delay_over, group, remaining_ms)
        group.join_phase.set(self._timers, delay_ms, over)

    def _first_delay_over(self, group: Group, remaining_ms: int) -> None:
        if not (group.newcomers and remaining_ms):
            self._complete_join(group)
            return
        group.newcomers = False
        delay = min(self._settings.initial_rebalance_delay_ms, remaining_ms)
        self._delay_first_join(group, delay, remaining_ms - delay)

    def _complete_join_if_all_are_here(self, group: Group) -> None:
        if group.everyone_joined and not group.first_join:
            self._complete_join(group)

    def _complete_join(self, group: Group) -> None:
        group.join_phase.cancel()
        group.first_join = False
        for member in list(group.members.values()):
            # A static member's place is kept until its session ends, joined or not.
            if member.joining is None and member.instance_id is None:
                log.info("group %s: member %s did not rejoin in time", group.group_id, member.member_id)
                member.session.cancel()
                group.remove(member)
        if group.members and not group.elect_joined_leader():
            self._limit_join(group)
            return
        group.begin_generation(self._timers.now_ms())
        if not group.members:
            log.info("group %s: empty at generation %d", group.group_id, group.generation)
            self._journal.write(group.group_id, [self.snapshot(group)], lambda _: None)
            return
        log.info(
            "group %s: generation %d, %d members, protocol %s, leader %s",
            group.group_id,
            group.generation,
            len(group.members),
            group.protocol,
            group.leader,
        )
        for member in group.members.values():
            group.unsynced.add(member.member_id)
            if answer_join(member, joined(group, member)):
                member.is_new = False
                self.keep_alive(group, member)
        group.sync_phase.set(self._timers, group.rebalance_timeout_ms, partial(self._sync_over, group))

    # -- the sync phase ---------------------------------------------------------------------------------

    def wait_for_assignment(self, group: Group, member: Member) -> asyncio.Future[Response]:
        answer_sync(member, not_synced(ErrorCode.rebalance_in_progress))
        waiting = member.syncing = later()
        return waiting

    def has_synced(self, group: Group, member: Member) -> None:
        group.unsynced.discard(member.member_id)
        if not group.unsynced:
            group.sync_phase.cancel()

    def _sync_over(self, group: Group) -> None:
        """Members that took their place in a generation but never asked for their part of it."""
        for member_id in list(group.unsynced):
            if (member := group.members.get(member_id)) is not None:
                self.remove(group, member, "did not sync in time")

    def assign(self, group: Group, assignments: Mapping[str, bytes]) -> None:
        """The leader's word: it holds, and members hear of it, once it is in the log."""
        if group.assigned_generation == group.generation:
            return  # the leader repeats itself
        generation = group.assigned_generation = group.generation

        def settle(code: ErrorCode) -> None:
            if group.state is not State.COMPLETING or group.generation != generation:
                return  # a rebalance began meanwhile and told the members
            if code is not ErrorCode.none:
                for member in group.members.values():
                    if answer_sync(member, not_synced(code)):
                        self.keep_alive(group, member)
                self._prepare(group)
                return
            group.state = State.STABLE
            group.state_timestamp = self._timers.now_ms()
            for member in group.members.values():
                member.assignment = assignments.get(member.member_id, b"")
                if answer_sync(member, synced(group, member)):
                    self.keep_alive(group, member)

        self._journal.write(group.group_id, [self.snapshot(group, assignments)], settle)

    def snapshot(self, group: Group, assignments: Mapping[str, bytes] | None = None) -> Entry:
        stored = group.stored(self._timers.now_ms(), assignments)
        return GroupKey(group.group_id), encode_group(stored)

    # -- members that stay, and those that don't --------------------------------------------------------

    def keep_alive(self, group: Group, member: Member) -> None:
        timeout = self._settings.new_member_join_timeout_ms if member.is_new else member.session_timeout_ms
        member.session.set(self._timers, timeout, partial(self._session_over, group, member))

    def _session_over(self, group: Group, member: Member) -> None:
        waits = member.joining is not None or member.syncing is not None
        if waits and not member.is_new:
            return  # it waits for us, not we for it; its session starts with the answer
        self.remove(group, member, "session timed out")

    def remove(self, group: Group, member: Member, why: str) -> None:
        log.info("group %s: member %s out: %s", group.group_id, member.member_id, why)
        self._dismiss(member, ErrorCode.unknown_member_id)
        group.remove(member)
        if group.state in (State.STABLE, State.COMPLETING):
            self._prepare(group)
        elif group.state is State.PREPARING:
            self._complete_join_if_all_are_here(group)

    def _dismiss(self, member: Member, code: ErrorCode) -> None:
        member.session.cancel()
        refuse_join(member, code)
        answer_sync(member, not_synced(code))

    # -- groups that come and go with their partition ---------------------------------------------------

    def adopt(self, group: Group) -> None:
        """A group read from the log: its members have a whole session to find this coordinator."""
        for member in group.members.values():
            self.keep_alive(group, member)

    def abandon(self, group: Group) -> None:
        """A group that went to another coordinator: whoever waits here must look for that one."""
        group.state = State.DEAD
        group.join_phase.cancel()
        group.sync_phase.cancel()
        for alarm in group.pending.values():
            alarm.cancel()
        group.pending.clear()
        for member in group.members.values():
            self._dismiss(member, ErrorCode.not_coordinator)
