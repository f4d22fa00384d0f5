//! Probes of gates that are half open: who takes one, and what becomes of it. A probe is a task that waits, or the first try of a caller.

use std::time::Duration;

use tokio::sync::oneshot;

use crate::clock::{Timestamp, pause};
use crate::error::Result;
use crate::gate::Gate;
use crate::id::TaskId;
use crate::task::Lane;

use super::gates::{Gates, LaneGate, Work, chance};
use super::limits::Passage;
use super::{Shared, lock};

/// So long a caller waits for a probe at the most.
const PATIENCE: Duration = Duration::from_secs(1);

impl Gates {
    /// This task is claimed as a probe of this cycle.
    pub(super) fn expect_probe(&self, id: TaskId, cycle: i64) {
        lock(&self.probes).insert(id, cycle);
    }

    /// It is, or has become, none; of which cycle it was.
    pub(super) fn forget_probe(&self, id: TaskId) -> Option<i64> {
        lock(&self.probes).remove(&id)
    }

    /// It was taken as a probe and has not begun: another may be one in its place.
    pub(super) fn return_probe(&self, lane: Lane, id: TaskId) {
        self.forget_probe(id).into_iter().for_each(|cycle| self.give_back(lane, cycle));
    }

    /// A probe of this cycle that says nothing.
    pub(super) fn give_back(&self, lane: Lane, cycle: i64) {
        self.push(Work::Undecided(lane, cycle));
    }

    /// A probe for a caller: of which cycle. Where nothing is ever written down there is no task that would be one.
    pub(super) async fn probe_for_caller(&self, lane: Lane) -> Option<i64> {
        let (answer, mut answered) = oneshot::channel();
        self.push(Work::Wanted(lane, answer));
        tokio::select! {
            cycle = &mut answered => cycle.ok(),
            () = pause(PATIENCE) => {
                answered.close();
                answered.try_recv().ok()
            }
        }
    }
}

impl Shared {
    /// A probe ended: it passed, or this is why it failed.
    pub(super) async fn end_probe(&self, lane: Lane, generation: i64, why: Option<&str>, now: Timestamp) -> Result<()> {
        let Some(config) = self.with_gate(lane, |lane| lane.config.clone()) else { return Ok(()) };
        let said = why.unwrap_or("too few of its probes succeeded");
        let decide = |gate: &Gate| gate.decided(&config, said, chance(gate, now), now);
        let Some((noted, next)) = self.store.end_probe(lane, generation, why.is_none(), decide).await? else {
            return Ok(());
        };
        let is_current = |known: &LaneGate| known.gate.generation == generation;
        match next {
            None => _ = self.with_gate(lane, |known| is_current(known).then(|| known.set(noted))),
            Some(next) => {
                self.with_gate(lane, |known| is_current(known).then(|| known.set(next.clone())));
                self.apply_gate(lane);
                self.tell_gate(&noted, &next).await;
            }
        }
        self.gates.look_soon();
        Ok(())
    }

    /// The node stops: what its last probes said is written, and those that it did not use are given back.
    pub(super) async fn leave_gates(&self) {
        let unused = self.limits().take_probes();
        unused.into_iter().for_each(|(lane, cycle)| self.gates.give_back(lane, cycle));
        let aborted = async {
            while !lock(&self.gates.running).is_empty() {
                pause(Duration::from_millis(1)).await; // a handler ends where it awaits
            }
        };
        _ = tokio::time::timeout(PATIENCE, aborted).await;
        if let Err(e) = self.do_gate_work(self.clock.now()).await {
            tracing::warn!(error = %e, "the last probes of gates could not be noted; they count as lost");
        }
    }

    /// Of these half-open lanes, the number of probes that this node can use now: where tasks wait and there is room to run them.
    pub(super) fn wanted_probes(&self, mut lanes: Vec<Lane>, now: Timestamp) -> Vec<(Lane, u32)> {
        if lanes.is_empty() || !self.may_start() {
            return Vec::new();
        }
        let waiting = self.waiting();
        let tasks = |lane: &Lane| {
            let ready = waiting.ready.lane_len(*lane);
            if ready == 0 && waiting.deep.contains(lane) { u32::MAX } else { u32::try_from(ready).unwrap_or(u32::MAX) }
        };
        lanes.retain(|lane| tasks(lane) > 0);
        let mut limits = self.limits();
        let mut room = limits.room();
        let mut wanted: Vec<(Lane, u32)> =
            lanes.iter().map(|lane| (*lane, limits.probe_room(*lane, tasks(lane), &mut room, now))).collect();
        wanted.retain(|(_, n)| *n > 0);
        wanted
    }

    /// Takes up to `wanted` probes of a lane for tasks that wait here.
    pub(super) async fn take_probes(&self, lane: Lane, wanted: u32, now: Timestamp) -> Result<()> {
        let left = self.with_gate(lane, |lane| lane.gate.probes_left(&lane.config, now)).unwrap_or(0);
        let n = left.min(wanted);
        if n > 0
            && let Some(generation) = self.take_so_many(lane, n, now).await?
        {
            self.limits().set_passage(lane, Passage::Probes(n, generation), now);
            self.wake.claimer.notify_one();
        }
        Ok(())
    }

    /// Takes `n` probes, all or none: of which generation they are.
    async fn take_so_many(&self, lane: Lane, n: u32, now: Timestamp) -> Result<Option<i64>> {
        let known = self.with_gate(lane, |lane| Some((lane.gate.taken(&lane.config, n, now)?, lane.gate.clone())));
        let Some((to, from)) = known.flatten() else { return Ok(None) };
        let begins = to.generation != from.generation;
        let is_done =
            if begins { self.store.move_gate(&from, &to).await? } else { self.store.take_probes(&from, &to).await? };
        if !is_done {
            self.refresh_gate(lane).await?;
            return Ok(None);
        }
        self.with_gate(lane, |known| known.set_probing(to.clone()));
        if begins {
            self.tell_gate(&from, &to).await;
        }
        Ok(Some(to.generation))
    }

    /// Takes one for a caller, if there is one left and the caller is still there.
    pub(super) async fn give_probe(&self, lane: Lane, caller: oneshot::Sender<i64>, now: Timestamp) -> Result<()> {
        if caller.is_closed() {
            return Ok(());
        }
        if let Some(generation) = self.take_so_many(lane, 1, now).await?
            && let Err(generation) = caller.send(generation)
        {
            self.gates.give_back(lane, generation);
        }
        Ok(())
    }
}
