//! The view: which nodes share the work, and which shards of it are ours.
//!
//! *State.* For each of our lanes the shards that are ours (`owned`), by the last view; how old that view is.
//!
//! *Invariants.* In a view is who is listed by the [registry](crate::registry), and by the node table neither dead nor leaving; what they
//! handle is read from the node table. It is renewed at every beat, when the registry has news, and when a look at the node table, of
//! which there are three a second, shows that somebody has come, is leaving or is dead. So a join, a leave or a death moves the shards
//! without a restart, and a leave does within half a second, before whoever leaves has done; what has begun stays where it is.
//!
//! *Failure.* When the registry or the node table does not answer, or the registry panics, or does not list us (then we join again), the
//! view is kept, for `registry.keep_view_for`. After that nothing is ours: nothing is looked for or claimed, while what runs goes
//! on, enqueues go on, and the beat goes on. The next answer gives us a view again.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;

use crate::clock::{Stopwatch, pause};
use crate::cluster::{handling, owned_shards};
use crate::error::Result;
use crate::id::SHARDS;
use crate::registry::{Member, Trouble};
use crate::store::Node;
use crate::task::{Lane, NodeNumber};

use super::{Engine, Shared};

/// How long the registry may take for an answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// How often the node table is asked who is there. Only the numbers of the living are read. (PostgreSQL could tell us, but
/// not through a pooler; a look costs about as much as a beat.)
const LOOK: Duration = Duration::from_millis(300);

/// Keeps the view.
pub(super) async fn run(shared: Arc<Shared>) {
    let (mut last, mut is_failing) = (Stopwatch::start(), false);
    let (mut living, mut is_news) = (Vec::new(), false);
    loop {
        tokio::select! {
            () = shared.registry.changed() => {}
            () = shared.others_than(&mut living) => is_news = true,
            () = pause(shared.config.beat_interval) => {}
            () = shared.stopping.cancelled() => break,
        }
        let now = Stopwatch::start();
        let renewed = tokio::select! {
            renewed = shared.renew_view() => renewed,
            () = shared.stopping.cancelled() => break,
        };
        if is_news {
            shared.doubts.nodes_changed(); // looked for in what is ours now
        }
        match renewed {
            Ok(()) => {
                last = now;
                is_news = false;
            }
            Err(ref e) => shared.keep_view(last.elapsed(), is_failing, e),
        }
        is_failing = renewed.is_err();
        let age = if is_failing { last.elapsed() } else { Duration::ZERO };
        metrics::gauge!("redrive_view_age_seconds").set(age.as_secs_f64());
    }
    shared.own(&[]); // whoever leaves has no part in the view
}

impl Engine {
    /// The shards of a method in which this node looks for tasks now, by its view of the others: all of them if no other node
    /// handles the method, none if this one does not, or is leaving, or has no view.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> redrive::Result<()> {
    /// use redrive::{Context, Engine, Store, Verdict};
    ///
    /// let greet = |_: Context, _: String| async { Ok::<(), Verdict>(()) };
    /// let engine = Engine::builder(Store::open("sqlite::memory:").await?).register("greet", greet).start().await?;
    /// assert_eq!((engine.shards("greet").len(), engine.shards("other").len()), (64, 0));
    /// # engine.stop().await;
    /// # Ok(()) }
    /// ```
    pub fn shards(&self, method: &str) -> Vec<u8> {
        (0..SHARDS).filter(|shard| self.0.owns(Lane::of(method), *shard)).collect()
    }
}

impl Engine {
    /// What keeps this node from looking for tasks now, for people; nothing if it does.
    pub fn troubles(&self) -> Vec<&'static str> {
        let shared = &self.0;
        let owns_none = shared.owned.read().unwrap_or_else(PoisonError::into_inner).values().all(|shards| *shards == 0);
        let all = [
            (shared.stopping.is_cancelled(), "this node is stopping"),
            (!shared.me.may_work(), "this node could not beat for too long, and may not work until it can"),
            (
                owns_none && !shared.lanes.methods().is_empty(),
                "this node has no shards: it has no view of the others, or there are too many",
            ),
        ];
        let all = all.into_iter().filter(|(is_so, _)| *is_so).map(|(_, trouble)| trouble);
        shared.broken().into_iter().chain(all).collect()
    }
}

impl Shared {
    /// Makes a new view. First who is listed, then the node table: everybody is in that before he is listed.
    pub(super) async fn renew_view(&self) -> Result<(), Trouble> {
        let _one_at_a_time = self.viewing.lock().await;
        let me = self.me.number();
        let mut listed = answer(async { self.registry.view().await }).await?;
        if !listed.contains(&me) {
            self.enlist(me).await?;
            listed = answer(async { self.registry.view().await }).await?;
        }
        if !listed.contains(&me) {
            return Err("the registry does not list this node".into());
        }
        let mut nodes = self.store.nodes().await?;
        nodes.retain(|node| listed.contains(&node.number));
        self.own(&nodes);
        Ok(())
    }

    /// Has the registry list us.
    async fn enlist(&self, number: NodeNumber) -> Result<(), Trouble> {
        let member = Member { database: self.store.database_name().await?, number, name: self.config.name.clone() };
        answer(async { self.registry.join(&member).await }).await
    }

    /// Has the registry list us no more: the others take over at once.
    pub(super) async fn delist(&self) {
        let _not_meanwhile = self.viewing.lock().await;
        if let Err(e) = answer(async { self.registry.leave().await }).await {
            tracing::warn!(error = %e, "the registry could not be told that this node leaves");
        }
    }

    /// Returns when others live, or are leaving, than at the last look. A look that fails shows nothing: whoever renews the view
    /// at the next beat says why.
    async fn others_than(&self, seen: &mut Vec<(NodeNumber, bool)>) {
        loop {
            match self.store.living().await {
                Ok(now) if now != *seen => return *seen = now,
                _ => pause(LOOK).await,
            }
        }
    }

    /// There is no new view: the last one holds, unless it is too old.
    fn keep_view(&self, age: Duration, is_known: bool, why: &Trouble) {
        let is_over = age >= self.settings().registry.keep_view_for;
        if is_over && self.own(&[]) {
            tracing::error!(error = %why, ?age, "no view of the other nodes for too long: looking for tasks no more until there is one");
        } else if !is_known {
            tracing::warn!(error = %why, "the view of the other nodes cannot be renewed; the last one holds");
        }
    }

    /// What is ours among these nodes. `false`: that is what it was.
    fn own(&self, nodes: &[Node]) -> bool {
        let me = self.me.number();
        let bits = |shards: Vec<u8>| shards.into_iter().fold(0u64, |bits, shard| bits | 1 << shard);
        let view = self.lanes.methods().iter().map(|lane| (*lane, bits(owned_shards(nodes, me, *lane)))).collect();
        self.lanes.methods().iter().for_each(|lane| self.limits().share(*lane, handling(nodes, *lane).len()));
        let mut owned = self.owned.write().unwrap_or_else(PoisonError::into_inner);
        let is_news = *owned != view;
        if is_news {
            *owned = view;
            drop(owned);
            self.forget_waiting();
            self.wake.scanner.notify_one();
        }
        is_news
    }
}

/// What the registry answers, if it does in time. It may be the application's code: one that panics has not answered.
async fn answer<T>(asked: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
    let asked = AssertUnwindSafe(asked).catch_unwind();
    let answered = tokio::time::timeout(PATIENCE, asked).await.map_err(|_| "the registry does not answer")?;
    answered.unwrap_or_else(|_| Err("the registry has panicked".into()))
}
