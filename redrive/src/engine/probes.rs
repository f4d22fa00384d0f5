//! Probes of gates that are half open: who takes one, and what becomes of it. A probe is a task that waits, or the first try of a caller.

use std::time::Duration;

use tokio::sync::oneshot;

use crate::clock::{Timestamp, pause};
use crate::error::Result;
use crate::gate::{Gate, GateConfig, GateState};
use crate::id::TaskId;
use crate::task::Lane;

use super::gates::{Gates, Work, chance};
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
    /// A probe passed: if that is enough, its gate closes.
    pub(super) async fn pass(&self, lane: Lane, generation: i64, now: Timestamp) -> Result<()> {
        let Some(gate) = self.store.pass_probe(lane, generation).await? else { return Ok(()) };
        let closed = self.with_gate(lane, |lane| {
            lane.set(gate.clone());
            lane.gate.closed(&lane.config, now)
        });
        match closed.flatten() {
            Some(closed) => self.move_gate(gate, closed).await.map(|_| ()),
            None => Ok(()),
        }
    }

    pub(super) async fn fail_probe(&self, lane: Lane, generation: i64, why: &str, now: Timestamp) -> Result<()> {
        let moved = self.with_gate(lane, |lane| {
            let from = lane.gate.clone();
            let is_ours = from.generation == generation && from.state == GateState::HalfOpen;
            is_ours.then(|| (from.opened(&lane.config, chance(&from, now), why, now), from))
        });
        match moved.flatten() {
            Some((to, from)) => self.move_gate(from, to).await.map(|_| ()),
            None => Ok(()),
        }
    }

    /// Takes as many probes as there are left and tasks to try.
    pub(super) async fn take_probes(&self, gate: &Gate, config: &GateConfig, now: Timestamp) -> Result<()> {
        let left = config.breaker.probes.saturating_sub(gate.probes_given);
        let wanted = {
            let waiting = self.waiting();
            let many = waiting.deep.contains(&gate.lane) && waiting.ready.lane_len(gate.lane) == 0;
            if many { left } else { left.min(u32::try_from(waiting.ready.lane_len(gate.lane)).unwrap_or(left)) }
        };
        if wanted == 0 || self.limits().probes_left(gate.lane) > 0 || !self.may_start() {
            return Ok(());
        }
        if self.take_so_many(gate, wanted, config, now).await? {
            self.limits().set_passage(gate.lane, Passage::Probes(wanted, gate.generation), now);
            self.wake.claimer.notify_one();
        }
        Ok(())
    }

    async fn take_so_many(&self, gate: &Gate, n: u32, config: &GateConfig, now: Timestamp) -> Result<bool> {
        let is_done = self.store.take_probes(gate, n, config.breaker.probes, now).await?;
        if is_done {
            self.with_gate(gate.lane, |lane| {
                if lane.gate.generation == gate.generation {
                    (lane.gate.probes_given, lane.gate.changed_at) = (lane.gate.probes_given + n, now);
                }
            });
        }
        Ok(is_done)
    }

    /// Takes one for a caller, if there is one left and the caller is still there.
    pub(super) async fn give_probe(&self, lane: Lane, caller: oneshot::Sender<i64>, now: Timestamp) -> Result<()> {
        let known = self.with_gate(lane, |lane| lane.has_probes().then(|| (lane.gate.clone(), lane.config.clone())));
        let Some((gate, config)) = known.flatten().filter(|_| !caller.is_closed()) else { return Ok(()) };
        if self.take_so_many(&gate, 1, &config, now).await?
            && let Err(cycle) = caller.send(gate.generation)
        {
            self.gates.give_back(lane, cycle);
        }
        Ok(())
    }
}
