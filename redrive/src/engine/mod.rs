//! The engine: takes due tasks, runs their handlers, settles them.
//!
//! ```text
//!  enqueue -> inserter --(due now, ours, room)--------------+
//!                 |                                         v
//!  database <-----+      scanner -> wheel -> ready -> claimer -> executor -> settler -> database
//! ```
//!
//! Each service is a small loop around one step that can be called by itself. The inserter and the settler batch naturally:
//! one flush is under way, and the next takes whatever has gathered meanwhile. No timer: a lone call is not delayed, and a
//! thousand callers share one commit.
//!
//! *State.* A task that we hold is in `running` from the claim until its settle is written, as *executing* and then as
//! *settling*; whoever moves it from one to the other settles it. The wheel and the ready queue hold ids only.
//!
//! *Invariants.* We claim no more than there are free slots. We start nothing, and write nothing, when we may not work
//! ([`Membership`]). Nothing is acknowledged before it is committed.
//!
//! *Failure.* When our right to work lapses, running handlers are stopped and their tasks given back once we may work again;
//! if we were fenced instead, everything is dropped and we go on under a new number. A row that is ours in the database and in
//! none of our lists (the answer to its claim was lost for good) is found by the sweep and given back. What becomes of a service that
//! panics is told in [`services`].

mod builder;
mod claimer;
mod config;
mod events;
mod executor;
mod gates;
mod handler;
mod history;
mod inline;
mod inserter;
mod lanes;
mod limits;
mod live;
mod node;
#[cfg(feature = "notify")]
mod notices;
mod pace;
mod pass;
mod probes;
mod ready;
mod saga;
mod scanner;
mod services;
mod settler;
mod signals;
mod sweep;
mod upkeep;
mod view;
mod wheel;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, Timestamp};
use crate::cluster::Membership;
use crate::error::{Error, Result};
use crate::id::{NameMap, TaskId};
#[cfg(feature = "notify")]
use crate::notify::Notifier;
use crate::policy::Policy;
use crate::registry::Registry;
use crate::retryable::IntoTask;
use crate::settings::Defaults;
use crate::store::{Cancelled, Connection, Due, Enqueued, Store, TaskFilter, Tx};
use crate::task::{Lane, NodeNumber, Task};

pub use builder::Builder;
pub use config::EngineConfig;
pub use events::Event;
pub(crate) use executor::panicked;
pub(crate) use handler::Handler;
pub use handler::{MethodOptions, Rate, State, Verdict};
pub(crate) use pass::Back;
pub use saga::{Sagas, StartedSaga};
pub(crate) use settler::{log_end, random};

use executor::Running;
use gates::Gates;
use inserter::Inserter;
use lanes::Lanes;
use limits::Limits;
use live::Live;
use ready::Ready;
use saga::Desk;
use services::{Hands, Services};
use settler::Settler;
use signals::Signals;
use sweep::Doubts;
use wheel::Wheel;

/// A running engine. Cheap to clone; it runs until [`stop`](Self::stop).
///
/// ```
/// use redrive::{Context, Engine, NewTask, Store, Verdict};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redrive::Result<()> {
/// let (done, mut seen) = tokio::sync::mpsc::unbounded_channel();
/// let engine = Engine::builder(Store::open("sqlite::memory:").await?)
///     .register("greet", move |_cx: Context, name: String| {
///         let done = done.clone();
///         async move { done.send(format!("hello {name}")).map_err(Verdict::from) }
///     })
///     .start()
///     .await?;
/// engine.enqueue(NewTask::new("greet", "world")?).await?;
/// assert_eq!(seen.recv().await.unwrap(), "hello world");
/// engine.stop().await;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Engine(Arc<Shared>);

/// What the services share.
#[derive(Debug)]
struct Shared {
    store: Store,
    clock: Clock,
    config: EngineConfig,
    handlers: NameMap<Handler>,
    state: State,
    defaults: RwLock<Arc<Defaults>>,
    live: Live,
    #[cfg(feature = "notify")]
    notifier: Option<Notifier>,
    lanes: Lanes,
    me: Membership,
    registry: Arc<dyn Registry>,
    /// Which shards of each lane are ours, a bit for each.
    owned: RwLock<HashMap<Lane, u64>>,
    /// Held by whoever makes a view.
    viewing: tokio::sync::Mutex<()>,
    /// Held from reading what people want until it holds here: what was read earlier must not come later.
    following: tokio::sync::Mutex<()>,
    waiting: Mutex<Waiting>,
    running: Mutex<Running>,
    limits: Mutex<Limits>,
    inserter: Inserter,
    settler: Settler,
    sagas: Desk,
    signals: Signals,
    gates: Gates,
    /// Whether any method here has a gate.
    has_gates: bool,
    /// Whether any method is paused.
    has_pauses: AtomicBool,
    /// Whether a target has ever asked for less.
    has_paces: AtomicBool,
    /// A test moves the clock by hand: nothing is paced, or it would wait for ever.
    by_hand: bool,
    wake: Wake,
    stopping: CancellationToken,
    /// When the engine's own loop last moved, by the clock of `me`, in ms: without that there is no beat.
    pulse: AtomicU64,
    /// Tasks run only while this is open: always, but in tests.
    gate: AtomicBool,
    doubts: Doubts,
    /// How many outcomes were written.
    settled: AtomicU64,
    /// Everything has ended: the beat may, too.
    ended: AtomicBool,
    services: Mutex<Services>,
}

/// How many due tasks are kept in memory that nobody scanned for, of all lanes together.
const MOST_READY: usize = 200_000;

/// Tasks that we know of and have not claimed.
#[derive(Debug)]
struct Waiting {
    wheel: Wheel,
    ready: Ready,
    /// Lanes of which more is due in the database than the last scan brought.
    more: HashSet<Lane>,
    /// Those of them whose tasks are claimed where they lie, without being scanned for first.
    deep: HashSet<Lane>,
    /// For every slice that was scanned: nothing before this time is pending, but what long transactions commit late.
    floors: HashMap<(Lane, u8), Timestamp>,
    /// For every slice that was scanned: what is due until then is in the wheel, but what others wrote since.
    known: HashMap<(Lane, u8), Timestamp>,
    /// Counts claims in deep lanes: each is of one half of the shards.
    turn: usize,
    /// The lanes of such claims that are under way, which half, and since when: what they get is not known yet.
    direct: Vec<(Lane, usize, Timestamp)>,
    /// The number of times that all floors were forgotten.
    forgotten: u64,
}

impl Waiting {
    fn new(now: Timestamp, prefetch: usize) -> Self {
        Self {
            wheel: Wheel::new(now, prefetch),
            ready: Ready::default(),
            more: HashSet::new(),
            deep: HashSet::new(),
            floors: HashMap::new(),
            known: HashMap::new(),
            turn: 0,
            direct: Vec::new(),
            forgotten: 0,
        }
    }
}

/// What wakes the services.
#[derive(Debug, Default)]
struct Wake {
    scanner: Notify,
    claimer: Notify,
    idle: Notify,
    beat: Notify,
    /// Other nodes have something to do.
    others: Notify,
}

impl Engine {
    /// Writes a task down. When this returns it is durable.
    pub async fn enqueue(&self, task: impl IntoTask) -> Result<Enqueued> {
        let new = task.into_new_task(&self.defaults())?;
        let prepared = self.0.store.prepare(new, self.0.clock.now())?;
        self.0.inserter.insert(prepared).await
    }

    /// The same, to run at a time to come.
    pub async fn enqueue_at(&self, when: Timestamp, task: impl IntoTask) -> Result<Enqueued> {
        let new = task.into_new_task(&self.defaults())?;
        self.enqueue(new.at(when)).await
    }

    /// Writes many tasks down. If one of them is not valid, none is written. If the database refuses some, the error is the
    /// first of theirs and the others may be written: with keys, asking again is safe.
    pub async fn enqueue_many(&self, tasks: impl IntoIterator<Item = impl IntoTask>) -> Result<Vec<Enqueued>> {
        let (now, defaults) = (self.0.clock.now(), self.defaults());
        let prepare = |task: _| self.0.store.prepare(IntoTask::into_new_task(task, &defaults)?, now);
        let prepared: Result<Vec<_>> = tasks.into_iter().map(prepare).collect();
        let answers = self.0.inserter.insert_many(prepared?);
        let mut all = Vec::with_capacity(answers.len());
        for answer in answers {
            all.push(inserter::answered(answer).await?);
        }
        Ok(all)
    }

    /// Writes a task down in the caller's own transaction: it is there, and runs, if and when that commits. Nothing is
    /// repeated in there. Call [`wake`](Self::wake) after the commit for it to run at once.
    pub async fn enqueue_in(&self, connection: impl Into<Connection<'_>>, task: impl IntoTask) -> Result<Enqueued> {
        let new = task.into_new_task(&self.defaults())?;
        let answers = self.0.store.insert_in(connection, vec![new], self.0.clock.now()).await?;
        self.0.signals.tally.add(answers.iter().filter(|answer| !answer.existed).map(|_| signals::Signal::Enqueued));
        answers.first().copied().ok_or(Error::NotFound { what: "answer to", id: "an enqueue".into() })
    }

    /// Runs `f` in a transaction, commits it, and lets the tasks that it wrote run.
    pub async fn transaction<T>(&self, f: impl AsyncFnOnce(&mut Tx) -> Result<T>) -> Result<T> {
        let mut tx = self.0.store.begin().await?;
        let value = f(&mut tx).await?;
        tx.commit().await?;
        self.wake();
        Ok(value)
    }

    /// Looks for due tasks now: after a commit of one's own. What others own is theirs to find.
    pub fn wake(&self) {
        self.0.wake.scanner.notify_one();
        self.0.wake.others.notify_one();
    }

    /// Cancels a task: at once if it waits, after its attempt (unless that succeeds) if it runs.
    pub async fn cancel(&self, id: TaskId) -> Result<Cancelled> {
        let done = self.0.store.cancel(id, self.0.clock.now()).await?;
        self.0.running().cancel(id);
        Ok(done)
    }

    /// Fails a task by hand: it becomes a dead letter.
    pub async fn fail(&self, id: TaskId) -> Result<Cancelled> {
        let done = self.0.store.fail(id, self.0.clock.now()).await?;
        self.0.running().cancel(id);
        Ok(done)
    }

    /// Makes a waiting task due now.
    pub async fn retry_now(&self, id: TaskId, by: Option<&str>) -> Result<()> {
        self.0.store.retry_now(id, by, self.0.clock.now()).await?;
        self.wake();
        Ok(())
    }

    /// Holds a method's tasks back, on all nodes, until it is [resumed](Self::resume): the others follow within a beat.
    /// What runs goes on. A first try of a caller is held back as well: its call is written down, or refused under `never` and `manual`.
    /// `false`: it was paused already.
    pub async fn pause(&self, method: &str, by: Option<&str>) -> Result<bool> {
        let done = self.0.store.pause(method, by, self.0.clock.now()).await?;
        self.0.follow_people().await?;
        Ok(done)
    }

    /// Lets a method's tasks run again. `false`: it was not paused.
    pub async fn resume(&self, method: &str, by: Option<&str>) -> Result<bool> {
        let done = self.0.store.resume(method, by, self.0.clock.now()).await?;
        self.0.follow_people().await?;
        Ok(done)
    }

    /// Takes up at once what people have paused, resumed or set in the store; otherwise that is at the next beat.
    pub async fn follow_people(&self) -> Result<()> {
        self.0.follow_people().await
    }

    /// Gives a task another policy.
    pub async fn edit_policy(&self, id: TaskId, policy: &Arc<Policy>, by: Option<&str>) -> Result<()> {
        self.0.store.edit_policy(id, policy, by, self.0.clock.now()).await
    }

    /// A task that waits or runs.
    pub async fn get(&self, id: TaskId) -> Result<Option<Task>> {
        self.0.store.get(id).await
    }

    /// Tasks that wait or run, newest first, one page at a time.
    pub async fn list(&self, filter: &TaskFilter, limit: u32) -> Result<Vec<Task>> {
        self.0.store.list(filter, limit).await
    }

    /// The store below.
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// The number under which this node works now. It gets another one if it was declared dead.
    pub fn number(&self) -> NodeNumber {
        self.0.me.number()
    }

    /// What the engine holds in memory now.
    pub fn stats(&self) -> Stats {
        let (wheel, ready) = {
            let waiting = self.0.waiting();
            (waiting.wheel.len(), waiting.ready.len())
        };
        Stats { wheel, ready, running: self.0.running().len(), executing: self.0.limits().taken() }
    }

    /// Stops: nothing new is started; what runs has the configured grace to end, and is then given back without
    /// burning an attempt.
    pub async fn stop(&self) {
        self.0.stop().await;
    }
}

/// What an engine holds in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Tasks that are due soon.
    pub wheel: usize,
    /// Tasks that are due and wait for a slot.
    pub ready: usize,
    /// Tasks that are ours: executing, or being settled.
    pub running: usize,
    /// Tasks that are executing.
    pub executing: usize,
}

impl Shared {
    async fn become_a_node(self: &Arc<Self>) -> Result<()> {
        self.sagas.belongs_to(self);
        self.join().await?;
        metrics::counter!("redrive_fenced").increment(0); // there from the start, so that the first one is an increase
        self.read_gates(self.clock.now()).await?;
        self.spawn_services()
    }

    fn spawn_services(self: &Arc<Self>) -> Result<()> {
        node::spawn_beat(self.clone())?;
        self.serve("inserter", Hands::Full, inserter::run);
        self.serve("settler", Hands::Full, settler::run);
        self.serve("claimer", Hands::Full, claimer::run);
        self.serve("journals", Hands::Full, saga::journals::run);
        self.serve("times", Hands::Empty, saga::times::run);
        self.serve("scanner", Hands::Empty, scanner::run);
        self.serve("sweeper", Hands::Empty, sweep::run);
        self.serve("node", Hands::Empty, node::run);
        self.serve("lapse", Hands::Empty, node::run_lapse);
        self.serve("view", Hands::Empty, view::run);
        self.serve("listener", Hands::Empty, scanner::run_listener);
        self.serve("waker", Hands::Empty, scanner::run_waker);
        self.serve("upkeep", Hands::Empty, upkeep::run);
        if self.has_gates {
            self.serve("gates", Hands::Empty, gates::run);
        }
        #[cfg(feature = "notify")]
        self.serve("notices", Hands::Empty, notices::run);
        Ok(())
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.waiting)
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        lock(&self.running)
    }

    fn owns(&self, lane: Lane, shard: u8) -> bool {
        self.owned_in(lane) & (1 << shard) != 0
    }

    fn limits(&self) -> MutexGuard<'_, Limits> {
        lock(&self.limits)
    }

    /// Whether tasks may be started.
    fn may_start(&self) -> bool {
        self.me.may_work() && self.gate.load(Ordering::Acquire)
    }

    /// A task that waits and is ours: it runs at its time without a scan.
    fn expect(&self, due: Due) {
        let mut waiting = self.waiting();
        if due.due <= self.clock.now() || waiting.wheel.has_passed(due.due) {
            // What cannot run for a while is found again when it can: memory is not where a backlog belongs.
            if waiting.ready.lane_len(due.lane) >= self.most_ready() || waiting.ready.known() >= MOST_READY {
                waiting.more.insert(due.lane);
                return;
            }
            waiting.ready.push(due);
            self.wake.claimer.notify_one();
        } else if waiting.wheel.insert(due) {
            drop(waiting);
            self.wake.claimer.notify_one();
        }
    }

    /// Drops what we know of waiting tasks: they may be others' now.
    fn forget_waiting(&self) {
        let mut waiting = self.waiting();
        waiting.wheel.clear();
        waiting.ready.clear();
        waiting.more.clear();
        waiting.deep.clear();
        waiting.floors.clear();
        waiting.known.clear();
    }
}

/// A mutex that is poisoned holds data of ours that is consistent after every statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
