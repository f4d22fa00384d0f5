//! For tests of code that uses redrive: a database in memory, a clock that stands still, tasks that run when they are told
//! to, and faults on purpose.
//!
//! ```
//! use redrive::testing::Testing;
//! use redrive::{Context, NewTask, Verdict, assert_enqueued};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> redrive::Result<()> {
//! let flaky = async |cx: Context, _order: u64| if cx.attempt() < 3 { Err(Verdict::from(std::fmt::Error)) } else { Ok(()) };
//! let test = Testing::with(|builder| builder.register("pay", flaky)).await;
//!
//! test.enqueue(NewTask::new("pay", &7)?).await?;
//! assert_enqueued!(test, "pay", 7); // it waits: nothing runs by itself
//! assert_eq!(test.run_due().await, 1); // the first attempt fails
//! assert_eq!(test.run_due().await, 0); // the next one is not due yet
//! assert_eq!(test.advance("5s").await, 1);
//! test.drain().await; // whatever it takes
//! assert!(test.waiting().await.is_empty());
//! # Ok(()) }
//! ```

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::clock::{Clock, Timestamp};
use crate::engine::{Builder, Engine};
use crate::id::IdMaker;
use crate::new_task::{Maker, NewTask};
use crate::retryable::IntoTask;
use crate::store::{Store, StoreOptions, TaskFilter};
use crate::task::{Task, limits};

pub use crate::store::{Fault, Faults};

/// The row that a [`NewTask`] would become, without a database: at a fixed time, with the first id.
///
/// # Panics
///
/// If the task is not valid.
#[expect(clippy::panic, reason = "for tests")]
pub fn task(new: NewTask) -> Task {
    let now = Timestamp::from_millis(1_800_000_000_000);
    let maker = Maker { ids: &IdMaker::new(0, Arc::default()), max_params: limits::PARAMS, keyring: None };
    new.into_task(&maker, now).unwrap_or_else(|e| panic!("{e}"))
}

/// An engine for tests: on a database in memory, by a clock that is moved by hand. Tasks wait until [`run_due`](Self::run_due)
/// or one of its kin runs them; what a [`call`](Engine::call) tries inline, it tries at once, as ever. It has all that an
/// [`Engine`] has.
///
/// # Panics
///
/// Its functions panic when the database fails for good, with what it said: in a test there is nobody to hand that to.
#[derive(Debug)]
pub struct Testing {
    engine: Engine,
    clock: Clock,
    faults: Faults,
}

impl std::ops::Deref for Testing {
    type Target = Engine;
    fn deref(&self) -> &Engine {
        &self.engine
    }
}

/// It is 2050 in tests: never before what a machine's own clock says.
const START: Timestamp = Timestamp::from_millis(2_524_608_000_000);

impl Testing {
    /// With the handlers that register themselves.
    pub async fn new() -> Self {
        Self::with(|builder| builder).await
    }

    /// With handlers, state and settings of one's own.
    pub async fn with(set_up: impl FnOnce(Builder) -> Builder) -> Self {
        let (clock, faults) = (Clock::manual(START), Faults::default());
        let options = StoreOptions { faults: Some(faults.clone()), ..StoreOptions::default() };
        let store = good(Store::open_with("sqlite::memory:", options).await);
        let builder = set_up(Engine::builder(store)).clock(clock.clone()).by_hand();
        Self { engine: good(builder.start().await), clock, faults }
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// What goes wrong from now on.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Runs all that is due, each once; how many attempts that were. What they enqueue, and what is due at once, runs too.
    pub async fn run_due(&self) -> u64 {
        good(self.engine.run_due_by_hand().await)
    }

    /// Moves the clock (`"5m"`, `"1h 30m"`) and runs what is due then.
    #[expect(clippy::panic, reason = "for tests")]
    pub async fn advance(&self, by: &str) -> u64 {
        let by = humantime::parse_duration(by).unwrap_or_else(|e| panic!("{by:?} is not a duration such as 5m: {e}"));
        self.advance_by(by).await
    }

    /// The same.
    pub async fn advance_by(&self, by: Duration) -> u64 {
        self.clock.advance(by);
        self.run_due().await
    }

    /// Runs everything, moving the clock to whatever is due next, until nothing waits; how many attempts that were.
    #[expect(clippy::panic, reason = "for tests")]
    pub async fn drain(&self) -> u64 {
        let mut attempts = self.run_due().await;
        for _ in 0..10_000 {
            let handled = |task: &Task| self.engine.handles(&task.method);
            let tasks = self.waiting().await.into_iter().filter(handled).map(|task| task.due);
            let Some(next) = tasks.chain(good(self.engine.store().next_due_saga(Timestamp::EPOCH).await)).min() else {
                return attempts;
            };
            attempts += self.advance_by(next.since(self.now())).await;
        }
        panic!("tasks still wait after 10,000 rounds: {:?}", self.waiting().await);
    }

    /// The tasks that wait, oldest first.
    pub async fn waiting(&self) -> Vec<Task> {
        let mut tasks = good(self.engine.list(&TaskFilter::default(), 10_000).await);
        tasks.reverse();
        tasks
    }

    /// The task that waits and is this call: the same method with the same params.
    pub async fn find(&self, call: impl IntoTask) -> Option<Task> {
        let wanted = good(call.into_new_task(&self.engine.defaults()));
        self.find_params(&wanted.method, &good_json(&wanted.params)).await
    }

    /// The same by method and params.
    pub async fn find_params(&self, method: &str, params: &impl Serialize) -> Option<Task> {
        let wanted = serde_json::to_value(params).ok();
        let same = |task: &Task| {
            task.method == method && serde_json::from_str::<serde_json::Value>(&task.params).ok() == wanted
        };
        self.waiting().await.into_iter().find(same)
    }
}

#[expect(clippy::panic, reason = "for tests")]
fn good<T>(result: crate::Result<T>) -> T {
    result.unwrap_or_else(|e| panic!("{e}"))
}

fn good_json(json: &str) -> serde_json::Value {
    serde_json::from_str(json).unwrap_or_default()
}

/// Asserts that a call waits to be run: `assert_enqueued!(test, pay(&order))`, or by method and params
/// `assert_enqueued!(test, "pay", order)`, or any task of a method: `assert_enqueued!(test, method = "pay")`.
#[macro_export]
macro_rules! assert_enqueued {
    ($test:expr, method = $method:expr) => {{
        let waiting = $test.waiting().await;
        assert!(waiting.iter().any(|task| task.method == $method), "no task of {:?} waits, but {waiting:#?}", $method);
    }};
    ($test:expr, $method:expr, $params:expr) => {{
        let found = $test.find_params($method, &$params).await;
        assert!(found.is_some(), "no such task of {:?} waits, but {:#?}", $method, $test.waiting().await);
    }};
    ($test:expr, $call:expr) => {{
        let found = $test.find($call).await;
        assert!(found.is_some(), "no such task waits: {}, but {:#?}", stringify!($call), $test.waiting().await);
    }};
}
