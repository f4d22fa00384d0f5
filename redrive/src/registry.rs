//! Who is there: how a node learns which others share the work.
//!
//! *State.* A [`Registry`] holds the numbers of the nodes that have joined and not left. Two are built in: the database itself,
//! which is the default, and Nacos (cargo feature `nacos`); a program can bring its own.
//!
//! *Invariants.* A registry decides *views*, and nothing else: which of the nodes that handle a method looks for its tasks in which
//! shards. Beats, fences and the rescue of what a dead node held go by the node table of the database alone, whatever a
//! registry says; and so does what a node handles. A view that is wrong costs time, never a task: two nodes that both believe a
//! shard to be theirs try to claim the same tasks, and the database lets one of them; a shard that nobody believes to be his
//! waits.
//!
//! *Failure.* Of those that a registry lists, the ones that the node table has as dead or leaving do not count, so an
//! entry that was left behind holds nothing up. A registry that does not answer, or does not list the node that asks,
//! leaves it with its last view for `keep_view_for`; then the node looks for tasks no more until it has a view again.

mod config;
#[cfg(feature = "nacos")]
mod nacos;

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::pause;
use crate::error::Result;
use crate::store::Store;
use crate::task::NodeNumber;

pub use config::{NacosConfig, RegistryConfig, RegistryKind};
#[cfg(feature = "nacos")]
pub use nacos::Nacos;

/// What went wrong with a registry: it is logged, and asked again.
pub type Trouble = Box<dyn std::error::Error + Send + Sync>;

/// What a registry answers, in time.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Trouble>> + Send + 'a>>;

/// A node, as it says who it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Which database it works on: a name that is made once in each. Nodes of different databases are never in one view.
    pub database: String,
    /// Its number there, which no other node ever has.
    pub number: NodeNumber,
    /// Who it is, for people.
    pub name: String,
}

/// Where nodes find each other. See the [module](self) for what it decides and what not.
///
/// Each engine has one of its own. None of the calls has to be quick, for the engine gives up waiting after some seconds: every
/// future may be dropped before it is done.
///
/// ```
/// use std::collections::BTreeSet;
/// use std::sync::{Arc, Mutex};
/// use redrive::registry::{Answer, Member, Registry};
/// use redrive::{Engine, NodeNumber, Store};
///
/// /// Nodes of one process that work on one database.
/// #[derive(Debug, Default)]
/// struct InProcess {
///     all: Arc<Mutex<BTreeSet<NodeNumber>>>,
///     me: Mutex<Option<NodeNumber>>,
/// }
///
/// impl Registry for InProcess {
///     fn join<'a>(&'a self, member: &'a Member) -> Answer<'a, ()> {
///         Box::pin(async {
///             self.leave().await?; // the number that we had before, if there was one
///             self.all.lock().unwrap().insert(member.number);
///             *self.me.lock().unwrap() = Some(member.number);
///             Ok(())
///         })
///     }
///
///     fn leave(&self) -> Answer<'_, ()> {
///         let me = self.me.lock().unwrap().take();
///         me.iter().for_each(|me| _ = self.all.lock().unwrap().remove(me));
///         Box::pin(async { Ok(()) })
///     }
///
///     fn view(&self) -> Answer<'_, Vec<NodeNumber>> {
///         Box::pin(async { Ok(self.all.lock().unwrap().iter().copied().collect()) })
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> redrive::Result<()> {
/// let engine = Engine::builder(Store::open("sqlite::memory:").await?).registry(InProcess::default()).start().await?;
/// # engine.stop().await;
/// # Ok(()) }
/// ```
pub trait Registry: Debug + Send + Sync {
    /// Lists this node from now on, for as long as it lives: the registry sees to it that the entry of a process that is gone
    /// goes, too. Called again when the view lacks the node, and when it has got a new number: then the old one
    /// is to be listed no more.
    fn join<'a>(&'a self, member: &'a Member) -> Answer<'a, ()>;

    /// Lists this node no more: others take its shards over while it finishes what it has.
    fn leave(&self) -> Answer<'_, ()>;

    /// The nodes of the joined node's database that are listed now, as the registry itself has them: a memory of what it last said
    /// is not an answer.
    fn view(&self) -> Answer<'_, Vec<NodeNumber>>;

    /// Returns when the view may have changed since the last call. Without it the registry is asked at every beat.
    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::pending())
    }
}

/// How often the database is asked who is there: so a leave, or a join, is known to the others in less than half a second. Only the
/// numbers of the living are read. (PostgreSQL could tell us, but not through a pooler; a look costs about as much as a beat.)
const LOOK: Duration = Duration::from_millis(400);

/// The node table itself. Nothing is to be done for joining and leaving, since every node is in the table anyway.
#[derive(Debug)]
pub(crate) struct Database {
    store: Store,
    /// Who was there at the last look, and whether they were leaving.
    seen: Mutex<Vec<(NodeNumber, bool)>>,
}

impl Database {
    fn new(store: Store) -> Self {
        Self { store, seen: Mutex::default() }
    }

    /// Looks. `true`: something has changed since the last look.
    async fn look(&self) -> Result<bool> {
        let now = self.store.living().await?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = *seen != now;
        *seen = now;
        Ok(changed)
    }
}

impl Registry for Database {
    fn join<'a>(&'a self, _: &'a Member) -> Answer<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn leave(&self) -> Answer<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn view(&self) -> Answer<'_, Vec<NodeNumber>> {
        Box::pin(async { Ok(self.store.living().await?.into_iter().map(|(number, _)| number).collect()) })
    }

    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            // A look that fails is nothing new: whoever renews the view at the next beat says why.
            while !matches!(self.look().await, Ok(true)) {
                pause(LOOK).await;
            }
        })
    }
}

impl RegistryConfig {
    /// The registry that these settings want.
    pub(crate) fn open(&self, store: &Store) -> Result<Arc<dyn Registry>> {
        match self.kind {
            RegistryKind::Database => Ok(Arc::new(Database::new(store.clone()))),
            #[cfg(feature = "nacos")]
            RegistryKind::Nacos => Ok(Arc::new(Nacos::new(self.nacos.clone())?)),
            #[cfg(not(feature = "nacos"))]
            RegistryKind::Nacos => Err(crate::error::Error::invalid("registry.kind", config::WITHOUT_NACOS)),
        }
    }
}
