//! What happens on this node, for whoever listens: a console, a test, a log of one's own.
//!
//! Nothing is kept for those who come later or are too slow: they learn how many they have missed, and look at the store. Where
//! nobody listens nothing is made.

use serde::Serialize;
use tokio::sync::broadcast;

use crate::clock::Timestamp;
use crate::id::TaskId;
use crate::saga::SagaState;
use crate::task::{Lane, NodeNumber, Task};

use super::Engine;

/// How many a slow listener may be behind.
const BEHIND: usize = 4_096;

/// Something that happened on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "about", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// To a task.
    Task {
        /// What: `enqueued`, `claimed`, `started`, `done`, `failed`, `postponed`, `cancelled`, `dead`, `rescued` or `lost`.
        what: &'static str,
        /// Which.
        id: TaskId,
        /// Its method.
        method: String,
        /// How many attempts there were before.
        attempts: u32,
    },
    /// To a gate.
    Gate {
        /// Which: the name of its method or host.
        gate: String,
        /// What it was.
        from: &'static str,
        /// What it is.
        to: &'static str,
        /// Why.
        why: Option<String>,
        /// Until when it is open.
        open_until: Option<Timestamp>,
    },
    /// A task goes through a gate that is half-open, as one of the few of this cycle.
    Probe {
        /// Which gate.
        lane: Lane,
        /// Which cycle of it.
        generation: i64,
        /// Which task.
        id: TaskId,
    },
    /// To a saga: it stands differently now.
    Saga {
        /// Which.
        id: String,
        /// Its name.
        name: String,
        /// How it stands.
        state: SagaState,
    },
    /// To a node.
    Node {
        /// What: `fenced`.
        what: &'static str,
        /// Which.
        number: NodeNumber,
    },
}

/// Those who listen.
#[derive(Debug)]
pub(super) struct Listeners(broadcast::Sender<Event>);

impl Default for Listeners {
    fn default() -> Self {
        Self(broadcast::channel(BEHIND).0)
    }
}

impl Listeners {
    pub(super) fn tell(&self, event: impl FnOnce() -> Event) {
        if self.0.receiver_count() > 0 {
            _ = self.0.send(event()); // the last one may have gone just now
        }
    }

    pub(super) fn of_task(&self, what: &'static str, task: &Task) {
        self.tell(|| Event::Task { what, id: task.id, method: task.method.clone(), attempts: task.attempts });
    }
}

impl Engine {
    /// What happens on this node from now on. Other nodes tell of theirs.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redrive::Result<()> {
    /// use redrive::{Context, Engine, Event, NewTask, Store, Verdict};
    ///
    /// let engine = Engine::builder(Store::open("sqlite::memory:").await?)
    ///     .register("greet", |_cx: Context, _name: String| async { Ok::<(), Verdict>(()) })
    ///     .start()
    ///     .await?;
    /// let mut events = engine.events();
    /// engine.enqueue(NewTask::new("greet", &"Ada")?).await?;
    /// while !matches!(events.recv().await, Ok(Event::Task { what: "done", .. })) {}
    /// # engine.stop().await;
    /// # Ok(()) }
    /// ```
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.0.signals.listeners.0.subscribe()
    }
}
