//! First tries of callers: held back while their method is paused, their gate is open or their target is left alone, counted like
//! attempts of tasks, and now and then a probe.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::gate::GateState;
use crate::settle::Outcome;
use crate::task::Lane;

use super::gates::Pass;
use super::{Engine, Shared, lock};

/// What holds a first try back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Back {
    Paused,
    /// The gate of its lane; until when, if that is known.
    Gate(Option<Timestamp>),
    /// Its target has asked to be left alone until then.
    Pace(Timestamp),
}

impl Engine {
    /// Whether anything could hold a first try back.
    pub(crate) fn may_hold_back(&self) -> bool {
        [&self.0.has_pauses, &self.0.has_paces].iter().any(|has| has.load(Ordering::Relaxed)) || self.0.has_gates
    }

    /// Whether a first try of a caller may be made now, and as what; else what holds it back. `limit`: for how long it may run.
    pub(crate) async fn pass_inline(
        &self,
        method: &str,
        part: Option<&str>,
        limit: Option<Duration>,
    ) -> std::result::Result<Passed, Back> {
        let shared = &self.0;
        let lane = part.map_or_else(|| Lane::of(method), |part| Lane::part(method, part));
        if shared.has_pauses.load(Ordering::Relaxed) && shared.limits().is_paused(lane) {
            return Err(Back::Paused);
        }
        let now = shared.clock.now();
        if shared.has_paces.load(Ordering::Relaxed)
            && let Some(until) = shared.limits().left_alone(lane, now)
        {
            return Err(Back::Pace(until));
        }
        let known = shared.with_gate(lane, |lane| (lane.effective(now), lane.gate.open_until, lane.through()));
        let inline = |pass| Passed::new(shared, lane, pass, limit);
        let Some((state, until, through)) = known else { return Ok(inline(Pass::Uncounted)) };
        let pass = match state {
            GateState::Open => return Err(Back::Gate(until)),
            GateState::HalfOpen => Pass::Probe(shared.probe_inline(lane, now).await.ok_or(Back::Gate(None))?),
            GateState::Closed => through,
        };
        Ok(inline(pass))
    }
}

impl Shared {
    /// A probe that waits here for a task, or one of those that are left.
    async fn probe_inline(&self, lane: Lane, now: Timestamp) -> Option<i64> {
        let waiting = self.limits().use_probe(lane);
        let left = self.with_gate(lane, |lane| lane.gate.probes_left(&lane.config, now))?;
        match waiting {
            None if left > 0 => self.gates.probe_for_caller(lane).await,
            waiting => waiting,
        }
    }
}

/// An attempt under way, as gates see it.
#[derive(Debug)]
pub(crate) struct Passed {
    shared: Arc<Shared>,
    lane: Lane,
    pass: Pass,
}

impl Passed {
    /// `timeout`: for how long it may run. Without one a probe may run for as long as its gate says.
    pub(super) fn new(shared: &Arc<Shared>, lane: Lane, pass: Pass, timeout: Option<Duration>) -> Self {
        if let Pass::Probe(cycle) = pass {
            let until = timeout.map_or(Timestamp::EPOCH, |timeout| shared.clock.now() + timeout);
            let mut running = lock(&shared.gates.running);
            let (n, latest) = running.entry((lane, cycle)).or_insert((0, until));
            (*n, *latest) = (*n + 1, until.max(*latest));
        }
        Self { shared: shared.clone(), lane, pass }
    }

    /// What became of it. `name`: of its gate, for people.
    pub(crate) fn end(mut self, outcome: &Outcome, took: Duration, name: impl Fn() -> String) {
        let pass = self.take();
        self.shared.count_call(self.lane, pass, outcome, took, &name);
    }

    fn take(&mut self) -> Pass {
        let pass = std::mem::replace(&mut self.pass, Pass::Uncounted);
        if let Pass::Probe(cycle) = pass {
            let mut running = lock(&self.shared.gates.running);
            if let Some((n, until)) = running.remove(&(self.lane, cycle)).filter(|(n, _)| *n > 1) {
                running.insert((self.lane, cycle), (n - 1, until));
            }
        }
        pass
    }
}

impl Drop for Passed {
    /// Its caller is gone, or its node stops: a probe says nothing then.
    fn drop(&mut self) {
        if let Pass::Probe(cycle) = self.take() {
            self.shared.gates.give_back(self.lane, cycle);
        }
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;
    use crate::context::Context;
    use crate::engine::MethodOptions;
    use crate::engine::limits::Passage;
    use crate::gate::{Gate, GateConfig};
    use crate::resilience::{Tally, Trip};
    use crate::store::Store;

    /// An engine whose gates move by hand, and the gate of its method, which has opened.
    async fn with_open_gate() -> (Engine, Gate) {
        let (store, config) = (Store::open("sqlite::memory:").await.unwrap(), GateConfig::default());
        let options = MethodOptions::default().gate(config.clone());
        let handler = async |_: Context, (): ()| Ok(());
        let builder = Engine::builder(store.clone()).register_with("m", options, handler).by_hand();
        let engine = builder.start().await.unwrap();
        let closed = Gate::new(Lane::of("m"), "m", engine.now());
        let tally = Tally { trip: Trip::Consecutive(10), bad: 10, total: 10 };
        let open = closed.tripped(&config, &tally, 0.0, engine.now()).unwrap();
        assert!(store.move_gate(&closed, &open).await.unwrap());
        (engine, open)
    }

    /// A web client that hangs up while its request is the probe.
    #[tokio::test]
    async fn a_probe_whose_caller_goes_away_is_given_to_another() {
        let (engine, open) = with_open_gate().await;
        let (shared, store, now) = (&engine.0, engine.store(), engine.now());
        let probed = open.taken(&GateConfig::default(), 1, now + Duration::from_secs(60)).unwrap();
        assert!(store.move_gate(&open, &probed).await.unwrap());
        shared.read_gates(now).await.unwrap();
        shared.limits().set_passage(open.lane, Passage::Probes(1, probed.generation), now);

        let given = async || store.gates().await.unwrap()[0].probes_given;
        let inline = engine.pass_inline("m", None, None).await.unwrap();
        assert!(engine.pass_inline("m", None, None).await.is_err(), "there was one");
        assert_eq!(given().await, 1);
        drop(inline);
        shared.do_gate_work(now).await.unwrap();
        assert_eq!(given().await, 0);
        engine.stop().await;
    }

    /// What the row says of how long a probe may take: other nodes go by it.
    #[tokio::test]
    async fn a_probe_is_not_lost_while_it_may_run() {
        let (engine, open) = with_open_gate().await;
        let (shared, store, now) = (&engine.0, engine.store(), engine.now());
        let probed = open.taken(&GateConfig::default(), 1, now + Duration::from_secs(60)).unwrap();
        assert!(store.move_gate(&open, &probed).await.unwrap());
        shared.read_gates(now).await.unwrap();
        shared.limits().set_passage(open.lane, Passage::Probes(1, probed.generation), now);
        let inline = engine.pass_inline("m", None, Some(Duration::from_secs(300))).await.unwrap();
        let later = probed.probes_until - Duration::from_secs(10);
        shared.move_gates(later).await.unwrap();
        shared.do_gate_work(later).await.unwrap();
        let until = async || store.gates().await.unwrap()[0].probes_until;
        assert_eq!(until().await, later + GateConfig::default().breaker.probe_limit);
        drop(inline);
        let much_later = later + Duration::from_secs(300);
        shared.move_gates(much_later).await.unwrap();
        shared.do_gate_work(much_later).await.unwrap();
        assert!(until().await < much_later, "it does not run any more");
        engine.stop().await;
    }

    /// Two nodes know a round whose probe is lost; one of them gives it away again, with the same numbers.
    #[tokio::test]
    async fn the_place_of_a_lost_probe_is_given_away_once() {
        let (engine, open) = with_open_gate().await;
        let (store, config, at) = (engine.store(), GateConfig::default(), open.open_until.unwrap());
        let first = open.taken(&config, 1, at).unwrap();
        assert!(store.move_gate(&open, &first).await.unwrap());
        let [one, other] =
            [0, 1].map(|n| first.taken(&config, 1, first.probes_until + Duration::from_secs(n)).unwrap());
        assert_eq!((one.generation, one.probes_given), (first.generation, first.probes_given));
        assert!(store.take_probes(&first, &one).await.unwrap());
        assert!(!store.take_probes(&first, &other).await.unwrap());
        engine.stop().await;
    }

    #[tokio::test]
    async fn a_gate_that_closed_while_nobody_here_could_look_is_found_closed() {
        let (engine, open) = with_open_gate().await;
        let (shared, store, now) = (&engine.0, engine.store(), engine.now());
        let held = open.held(Some(crate::gate::Hold::Open), None, now);
        assert!(store.move_gate(&open, &held).await.unwrap());
        shared.read_gates(now).await.unwrap();
        assert!(engine.pass_inline("m", None, None).await.is_err());
        assert!(store.move_gate(&held, &held.reset(now)).await.unwrap());
        shared.read_gates(now + Duration::from_secs(3600)).await.unwrap();
        assert!(engine.pass_inline("m", None, None).await.is_ok());
        engine.stop().await;
    }

    /// Whoever reads rows again and again must not keep what others have removed.
    #[tokio::test]
    async fn a_gate_whose_row_was_removed_is_closed_and_can_open_again() {
        let (engine, open) = with_open_gate().await;
        let (shared, store, now) = (&engine.0, engine.store(), engine.now());
        shared.read_gates(now).await.unwrap();
        assert!(engine.pass_inline("m", None, None).await.is_err());
        assert_eq!(store.forget_gates(now).await.unwrap(), 0, "it is needed");
        assert_eq!(store.forget_gates(now + Duration::from_secs(3600)).await.unwrap(), 1);
        shared.read_gates(now).await.unwrap();
        let Ok(inline) = engine.pass_inline("m", None, None).await else { panic!("it is closed") };
        drop(inline);
        for _ in 0..20 {
            let inline = engine.pass_inline("m", None, None).await.unwrap();
            let failed = Outcome::Failed(crate::Failure::retry("connect", "nobody is there"));
            inline.end(&failed, Duration::ZERO, || "m".into());
        }
        shared.do_gate_work(now).await.unwrap();
        let gate = store.gate(open.lane).await.unwrap().unwrap();
        assert!(gate.state == GateState::Open && gate.generation > open.generation, "{gate:?}");
        engine.stop().await;
    }
}
