//! Gates: what happens to the tasks of a target that is down, on real nodes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive::gate::{Gate, GateConfig, GateState, Hold};
use redrive::resilience::{BreakerConfig, Mode, Trip};
use redrive::store::GateAction;
use redrive::{
    Backoff, CallError, Cause, Context, Engine, EngineConfig, ErrorKind, Event, Jitter, Lane, MethodOptions, NewTask,
    Persist, Policy, Retryable, Store, Verdict,
};

use crate::harness::{Db, Kind, moment, new, stores};

stores!(
    a_target_that_is_down_sees_only_probes_and_nothing_is_lost,
    a_gate_that_a_person_holds_stays_so,
    what_others_made_of_a_gate_is_followed,
    no_cycle_has_more_probes_than_it_may_though_a_node_dies,
    a_first_try_is_not_made_while_the_gate_is_open,
    callers_who_write_nothing_down_find_that_a_target_is_back,
    only_the_health_of_a_target_counts,
    a_gate_that_only_observes_holds_nothing_back,
    source_4_every_change_of_a_gate_is_told,
    a_target_that_comes_back_half_well_is_let_through_and_told_of_once,
    a_node_that_stops_gives_its_probe_back,
);

const LANE: fn() -> Lane = || Lane::of("m");

fn config() -> EngineConfig {
    let mut config = EngineConfig::default();
    config.scan_interval = Duration::from_millis(100);
    config.sweep_interval = Duration::from_millis(500);
    config.beat_interval = Duration::from_millis(100);
    (config.lease, config.margin) = (Duration::from_millis(1_500), Duration::from_millis(300));
    config
}

/// Opens after three failures, waits so long, gives two probes away.
fn gate(wait: u64) -> GateConfig {
    let breaker = BreakerConfig {
        trips: vec![Trip::Consecutive(3)],
        open_wait: Backoff::fixed(Duration::from_millis(wait)),
        open_jitter: Jitter::None,
        probes: 2,
        probe_limit: Duration::from_secs(2),
        ..BreakerConfig::default()
    };
    let mut gate = GateConfig::default();
    gate.breaker = breaker;
    gate
}

/// Tried for ever, a little later each time.
fn patient() -> Policy {
    let backoff = Backoff::fixed(Duration::from_millis(20));
    Policy { max_attempts: None, backoff, jitter: Jitter::None, ..Policy::default() }
}

#[derive(Debug, thiserror::Error)]
#[error("nobody is there")]
struct Down;
impl ErrorKind for Down {
    fn kind(&self) -> redrive::Kind {
        redrive::Kind::CONNECT
    }
}

/// A target that is down or up, and counts what reaches it.
#[derive(Clone, Default)]
struct Target {
    up: Arc<AtomicBool>,
    calls: Arc<AtomicU32>,
    good: Arc<AtomicU32>,
}

impl Target {
    fn call(&self) -> Result<(), Verdict> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if !self.up.load(Ordering::SeqCst) {
            return Err(Verdict::of(&Down));
        }
        self.good.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }

    async fn engine(&self, store: Store, gate: GateConfig) -> Engine {
        let target = self.clone();
        let handler = move |_: Context, _: u64| std::future::ready(target.call());
        let other = async |_: Context, _: u64| Ok(());
        let builder = Engine::builder(store).config(config());
        let builder = builder.register_with("m", MethodOptions::default().gate(gate), handler).register("other", other);
        builder.start().await.unwrap()
    }
}

async fn seen(store: &Store) -> Option<Gate> {
    store.gates().await.unwrap().into_iter().find(|gate| gate.lane == LANE())
}

async fn until(store: &Store, is: impl Fn(&Gate) -> bool) -> Gate {
    loop {
        if let Some(gate) = seen(store).await.filter(|gate| is(gate)) {
            return gate;
        }
        moment().await;
    }
}

async fn a_target_that_is_down_sees_only_probes_and_nothing_is_lost(db: Db) {
    let target = Target::default();
    let engine = target.engine(db.another().await, gate(300)).await;
    let tasks = (0..300).map(|n| new(n).policy(patient()));
    engine.enqueue_many(tasks).await.unwrap();
    until(&db.store, |gate| gate.state == GateState::Open && gate.opens >= 3).await;
    engine.enqueue(NewTask::new("other", &1).unwrap()).await.unwrap();
    while !db
        .store
        .list(&redrive::store::TaskFilter { method: Some("other".into()), ..Default::default() }, 1)
        .await
        .unwrap()
        .is_empty()
    {
        moment().await; // another method goes on
    }
    // What was running when it opened has ended; since then two in each cycle.
    let before = (target.calls(), until(&db.store, |gate| gate.state == GateState::Open).await.opens);
    let after = until(&db.store, |gate| gate.state == GateState::Open && gate.opens >= before.1 + 3).await;
    let (calls, cycles) = (target.calls() - before.0, after.opens - before.1 + 1);
    assert!(calls <= 2 * cycles, "{calls} calls in {cycles} cycles");
    assert!(after.why.unwrap().contains("connect") && after.name == "m" && after.failing_since.is_some());
    target.up.store(true, Ordering::SeqCst);
    until(&db.store, |gate| gate.state == GateState::Closed).await;
    while db.count("retry_task").await > 0 {
        moment().await;
    }
    assert_eq!((target.good.load(Ordering::SeqCst), db.count("retry_dead").await), (300, 0));
    engine.stop().await;
}

async fn a_gate_that_a_person_holds_stays_so(db: Db) {
    let target = Target::default();
    target.up.store(true, Ordering::SeqCst);
    let engine = target.engine(db.another().await, gate(50)).await;
    let now = db.store.now().await.unwrap();
    db.store.act_on_gate(LANE(), GateAction::Reset, "ada", None, now).await.unwrap_err();
    db.store.make_gate(LANE(), "m", now).await.unwrap();
    db.store.act_on_gate(LANE(), GateAction::Hold(Hold::Open), "ada", Some("they deploy"), now).await.unwrap();
    // It is followed at the next beat; what runs until then runs.
    let mut n = 0;
    'held: loop {
        n += 1;
        let id = engine.enqueue(new(n)).await.unwrap().id;
        while let Some(task) = db.store.get(id).await.unwrap() {
            if task.status == redrive::Status::Pending {
                break 'held;
            }
        }
    }
    let calls = target.calls();
    db.store.act_on_gate(LANE(), GateAction::Release, "bob", None, now).await.unwrap();
    while target.calls() == calls {
        moment().await;
    }
    target.up.store(false, Ordering::SeqCst);
    db.store.act_on_gate(LANE(), GateAction::Hold(Hold::Closed), "bob", None, now).await.unwrap();
    engine.enqueue(new(1_000).policy(patient())).await.unwrap();
    let calls = target.calls();
    while target.calls() < calls + 20 {
        moment().await; // whatever comes of it
    }
    let held = seen(&db.store).await.unwrap();
    assert_eq!((held.held, held.effective()), (Some(Hold::Closed), GateState::Closed));
    db.store.act_on_gate(LANE(), GateAction::Reset, "bob", None, now).await.unwrap();
    until(&db.store, |gate| gate.state == GateState::Open && gate.held.is_none()).await;
    assert_eq!(db.count("redrive_audit").await, 4);
    engine.stop().await;
}

async fn what_others_made_of_a_gate_is_followed(db: Db) {
    let target = Target::default();
    let one = target.engine(db.another().await, gate(60_000)).await;
    one.enqueue_many((0..20).map(|n| new(n).policy(patient()))).await.unwrap();
    until(&db.store, |gate| gate.state == GateState::Open).await;
    one.stop().await;
    let calls = target.calls();
    target.up.store(true, Ordering::SeqCst);
    let other = target.engine(db.another().await, gate(60_000)).await;
    other.enqueue(NewTask::new("other", &1).unwrap()).await.unwrap();
    while db.count("retry_task").await > 20 {
        moment().await;
    }
    assert_eq!(target.calls(), calls, "a node that has just started knows that it is open");
    let now = db.store.now().await.unwrap();
    db.store.act_on_gate(LANE(), GateAction::Reset, "ada", None, now).await.unwrap();
    while db.count("retry_task").await > 0 {
        moment().await;
    }
    other.stop().await;
}

/// How many probes reached the target in each cycle.
type Cycles = Arc<Mutex<BTreeMap<i64, u32>>>;

/// A node whose calls all fail, or hang.
async fn probing(store: Store, cycles: Cycles, hangs: bool) -> Engine {
    let handler = move |_: Context, _: u64| async move {
        if hangs {
            std::future::pending::<()>().await;
        }
        Err::<(), _>(Verdict::of(&Down))
    };
    let builder = Engine::builder(store).config(config());
    let options = MethodOptions::default().gate(gate(10));
    let engine = builder.register_with("m", options, handler).start().await.unwrap();
    let mut events = engine.events();
    tokio::spawn(async move {
        while let Ok(event) = events.recv().await {
            if let Event::Probe { generation, .. } = event {
                *cycles.lock().unwrap().entry(generation).or_default() += 1;
            }
        }
    });
    engine
}

async fn no_cycle_has_more_probes_than_it_may_though_a_node_dies(db: Db) {
    let cycles = Cycles::default();
    let mut engines = Vec::new();
    for _ in 0..2 {
        engines.push(probing(db.another().await, cycles.clone(), false).await);
    }
    engines[0].enqueue_many((0..200).map(|n| new(n).policy(patient()))).await.unwrap();
    until(&db.store, |gate| gate.opens >= 10).await;
    // A third one, in a runtime of its own, whose probes hang; it dies with one.
    let dying = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (url, log) = (db.url.clone(), cycles.clone());
    let started = dying.spawn(async move { probing(Store::open(&url).await.unwrap(), log, true).await });
    let engine = started.await.unwrap();
    until(&db.store, |gate| gate.why.as_deref() == Some("a probe was lost")).await;
    drop(engine);
    dying.shutdown_background();
    let wanted = if db.kind == Kind::Postgres { 100 } else { 40 };
    until(&db.store, |gate| gate.opens >= wanted).await;
    for engine in engines {
        engine.stop().await;
    }
    let cycles = cycles.lock().unwrap();
    assert!(cycles.len() as u32 >= wanted * 9 / 10, "{cycles:?}");
    assert!(cycles.values().all(|probes| *probes <= 2), "{cycles:?}");
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Pay {
    n: u64,
}

static PAID: AtomicU32 = AtomicU32::new(0);

impl Retryable for Pay {
    const METHOD: &'static str = "pay";
    type Output = ();
    type Error = Down;
    async fn execute(&self, _: &Context<'_>) -> Result<(), Down> {
        PAID.fetch_add(1, Ordering::SeqCst);
        if self.n < 2_000 { Err(Down) } else { Ok(()) }
    }
    fn classify(&self, e: &Down) -> Verdict {
        Verdict::of(e)
    }
    fn policy(&self, defaults: Policy) -> Policy {
        let max_attempts = if self.n < 1_000 { defaults.max_attempts } else { Some(1) };
        Policy { max_attempts, ..defaults }
    }
    fn persist(&self) -> Option<Persist> {
        Some(match self.n {
            0 => Persist::Always,
            n if n >= 1_000 => Persist::Never,
            _ => Persist::RetryOnly,
        })
    }
}

async fn a_first_try_is_not_made_while_the_gate_is_open(db: Db) {
    let builder = Engine::builder(db.another().await).config(config());
    let engine = builder.handler_as::<Pay>("pay", MethodOptions::default().gate(gate(600_000))).start().await.unwrap();
    for n in 0..3 {
        let tried = engine.call(Pay { n }).await.unwrap_err();
        assert!(matches!(tried, CallError::Deferred { cause: Some(Cause::Error(_)), .. }), "{tried}");
    }
    let held = engine.call(Pay { n: 7 }).await.unwrap_err();
    assert!(matches!(held, CallError::Deferred { cause: Some(Cause::Held(Some(_))), .. }), "{held}");
    let held = engine.call(Pay { n: 1_000 }).await.unwrap_err();
    assert!(matches!(held, CallError::Rejected { cause: Cause::Held(Some(_)) }), "{held}");
    assert_eq!(db.count("retry_task").await, 4, "what is held back is written down");
    engine.stop().await;
}

async fn callers_who_write_nothing_down_find_that_a_target_is_back(db: Db) {
    let builder = Engine::builder(db.another().await).config(config());
    let engine = builder.handler_as::<Pay>("pay", MethodOptions::default().gate(gate(100))).start().await.unwrap();
    for _ in 0..3 {
        engine.call(Pay { n: 1_000 }).await.unwrap_err();
    }
    let is_closed =
        async || db.store.gates().await.unwrap().first().is_some_and(|gate| gate.state == GateState::Closed);
    while !is_closed().await {
        _ = engine.call(Pay { n: 2_000 }).await;
        moment().await;
    }
    while engine.call(Pay { n: 2_000 }).await.is_err() {
        moment().await; // the row has closed; the node is about to know
    }
    engine.stop().await;
}

async fn only_the_health_of_a_target_counts(db: Db) {
    let handler = async |_: Context, n: u64| match n % 3 {
        0 => Err(Verdict::from(std::fmt::Error)),
        1 => Err(Verdict::fatal("declined")),
        _ => Err(Verdict::Snooze(Duration::from_secs(60))),
    };
    let options = MethodOptions::default().gate(gate(1_000));
    let engine = Engine::builder(db.another().await)
        .config(config())
        .register_with("m", options, handler)
        .start()
        .await
        .unwrap();
    let once = Policy { max_attempts: Some(1), ..Policy::default() };
    engine.enqueue_many((0..60).map(|n| new(n).policy(once.clone()))).await.unwrap();
    while db.count("retry_dead").await < 40 {
        moment().await;
    }
    engine.stop().await;
    assert_eq!(seen(&db.store).await, None);
}

async fn a_gate_that_only_observes_holds_nothing_back(db: Db) {
    let target = Target::default();
    let mut watching = gate(50);
    watching.breaker.mode = Mode::Observe;
    let engine = target.engine(db.another().await, watching).await;
    engine.enqueue_many((0..20).map(|n| new(n).policy(patient()))).await.unwrap();
    let first = until(&db.store, |gate| gate.state == GateState::Open).await.generation;
    until(&db.store, |gate| gate.generation > first + 4).await; // it opens again and again
    let calls = target.calls();
    while target.calls() < calls + 100 {
        moment().await;
    }
    engine.stop().await;
}

async fn source_4_every_change_of_a_gate_is_told(db: Db) {
    let target = Target::default();
    let engine = target.engine(db.another().await, gate(100)).await;
    let mut events = engine.events();
    engine.enqueue_many((0..20).map(|n| new(n).policy(patient()))).await.unwrap();
    let mut told = Vec::new();
    while told.last() != Some(&("half_open", "closed")) {
        let Event::Gate { from, to, why, open_until, .. } = events.recv().await.unwrap() else { continue };
        if told.is_empty() {
            assert!(why.is_some_and(|why| why.contains("failures in a row")) && open_until.is_some());
            target.up.store(true, Ordering::SeqCst);
        }
        told.push((from, to));
    }
    assert_eq!(told[0], ("closed", "open"));
    assert!(told.windows(2).all(|two| two[0].1 == two[1].0), "each goes on from the one before: {told:?}");
    engine.stop().await;
}

/// The default gate: down, then every second call fails.
async fn a_target_that_comes_back_half_well_is_let_through_and_told_of_once(db: Db) {
    let target = Target::default();
    let handler = {
        let target = target.clone();
        move |_: Context, _: u64| {
            let called = target.call();
            let is_odd = target.calls() % 2 == 1;
            std::future::ready(if called.is_ok() && is_odd { Err(Verdict::of(&Down)) } else { called })
        }
    };
    let mut config = config();
    config.concurrency = 4;
    let options = MethodOptions::default().gate(GateConfig::default());
    let builder = Engine::builder(db.another().await).config(config).register_with("m", options, handler);
    let engine = builder.start().await.unwrap();
    engine.enqueue_many((0..200).map(|n| new(n).policy(patient()))).await.unwrap();
    until(&db.store, |gate| gate.state == GateState::Open && gate.opens >= 2).await;
    target.up.store(true, Ordering::SeqCst);
    while db.count("retry_task").await > 0 {
        moment().await;
    }
    engine.stop().await;
    assert_eq!(db.count("retry_dead").await, 0);
    assert_eq!(db.sql("SELECT COUNT(*) FROM redrive_notice WHERE error_kind = 'gate.opened'").await, Some(1));
}

async fn a_node_that_stops_gives_its_probe_back(db: Db) {
    let target = Target::default();
    let handler = {
        let target = target.clone();
        move |_: Context, _: u64| {
            let target = target.clone();
            async move {
                let called = target.call();
                if target.calls() > 20 {
                    std::future::pending::<()>().await; // a probe
                }
                called
            }
        }
    };
    let mut config = config();
    (config.concurrency, config.grace) = (1, Duration::from_millis(10));
    let options = MethodOptions::default().gate(GateConfig::default());
    let builder = Engine::builder(db.another().await).config(config).register_with("m", options, handler);
    let engine = builder.start().await.unwrap();
    engine.enqueue_many((0..40).map(|n| new(n).policy(patient()))).await.unwrap();
    until(&db.store, |gate| gate.probes_given == 1).await;
    while target.calls() < 21 {
        moment().await;
    }
    engine.stop().await;
    let gate = seen(&db.store).await.unwrap();
    assert_eq!((gate.state, gate.probes_given), (GateState::HalfOpen, 0));
}
