//! Being a node: the beat on a thread of its own, an eye on the others' beats, the end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::clock::pause;
use crate::cluster::Watch;
use crate::error::{Error, Result};
use crate::store::{Node, NodeSeen, Registration, Store};
use crate::task::{Lane, NodeNumber};

use super::Shared;
use super::events::Event;
use super::services::Hands;

/// The beat has a thread, a runtime and connections of its own: handlers that block the others' threads, or a database pool
/// in full use, do not silence it. It is not blind for that: it beats only while the engine's own loop moves (`pulse`).
pub(super) fn spawn_beat(shared: Arc<Shared>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let failed = |e: std::io::Error| Error::Conflict { doing: "start", id: "the beat".into(), why: e.to_string() };
    let runtime = runtime.map_err(failed)?;
    let beat = move || runtime.block_on(shared.keep_up_service("beat", Hands::Empty, run_beat));
    std::thread::Builder::new().name("redrive-beat".into()).spawn(beat).map_err(failed)?;
    Ok(())
}

async fn run_beat(shared: Arc<Shared>) {
    let mut own: Option<Store> = None;
    while !shared.ended.load(Ordering::Acquire) {
        if own.is_none() {
            own = shared
                .store
                .apart(2)
                .await
                .inspect_err(|e| tracing::warn!(error = %e, "the beat has no connection"))
                .ok();
        }
        if let Some(store) = &own
            && shared.is_moving()
        {
            shared.beat(store, shared.me.number()).await;
        }
        tokio::select! {
            () = pause(shared.config.beat_interval) => {}
            () = shared.wake.beat.notified() => {}
        }
    }
}

/// Looks at the other nodes, again and again.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut watch = Watch::default();
    loop {
        shared.look_around(&mut watch).await;
        tokio::select! {
            () = pause(shared.config.beat_interval) => {}
            () = shared.ended() => return,
        }
    }
}

/// Stops what runs when our right to work has lapsed: well within the margin before others may declare us dead. Its turning
/// shows the beat that the engine moves.
pub(super) async fn run_lapse(shared: Arc<Shared>) {
    loop {
        shared.pulse.store(u64::try_from(shared.me.instant().as_millis()).unwrap_or(u64::MAX), Ordering::Release);
        if !shared.me.may_work() {
            shared.give_back_all();
        }
        tokio::select! {
            () = pause(shared.config.margin / 8) => {}
            () = shared.ended() => return,
        }
    }
}

impl Shared {
    /// Becomes a node under a fresh number.
    pub(super) async fn join(&self) -> Result<()> {
        let mut methods: Vec<String> = self.handlers.keys().cloned().collect();
        methods.sort_unstable();
        let (name, build) = (self.config.name.clone(), env!("CARGO_PKG_VERSION").into());
        let who = Registration { name, build, methods, lease: self.config.lease };
        let now = self.clock.now();
        let number = self.store.register(&who, now).await?;
        self.me.renumber(number, now);
        self.beat(&self.store, number).await;
        if let Err(e) = self.renew_view().await {
            tracing::warn!(error = %e, "no view of the other nodes yet");
        }
        self.follow_people().await
    }

    /// Whether the engine's own loop has moved within a lease, and no work was lost with a service.
    fn is_moving(&self) -> bool {
        let pulse = Duration::from_millis(self.pulse.load(Ordering::Acquire));
        self.me.instant().saturating_sub(pulse) < self.config.lease && self.broken().is_none()
    }

    async fn beat(&self, store: &Store, number: NodeNumber) {
        let sent = self.me.instant();
        let answer = tokio::time::timeout(self.config.lease, store.beat(number)).await;
        match answer {
            Ok(Ok(NodeSeen::Alive(now))) => {
                self.clock.sync(now);
                if self.me.number() == number {
                    self.me.extend(sent, self.config.lease, self.config.margin);
                }
            }
            Ok(Ok(NodeSeen::Fenced)) if self.stopping.is_cancelled() => self.me.revoke(), // we have left ourselves
            Ok(Ok(NodeSeen::Fenced)) if self.me.number() != number => {} // a late answer about an earlier number
            Ok(Ok(NodeSeen::Fenced)) => {
                tracing::error!(node = %number, "this node was declared dead; it drops its work and takes a new number");
                self.me.revoke();
            }
            Ok(Err(e)) => tracing::warn!(node = %number, error = %e, "a beat failed"),
            Err(_) => tracing::warn!(node = %number, "a beat was not answered in time"),
        }
    }

    /// Reads the node table: fences who is silent, and learns whether we are still in it.
    async fn look_around(&self, watch: &mut Watch) {
        let asked = self.me.instant();
        let nodes = match self.store.nodes().await {
            // An answer that was long in coming hides an outage, in which nobody could beat.
            Ok(nodes) if self.me.instant() - asked > self.config.lease / 2 => {
                watch.forget();
                nodes
            }
            Ok(nodes) => nodes,
            Err(e) => {
                tracing::warn!(error = %e, "the nodes could not be read");
                return watch.forget();
            }
        };
        let me = self.me.number(); // which changes in this task only
        if !nodes.iter().any(|node| self.me.is(node)) {
            return self.join_again().await;
        }
        for other in watch.other_leases(&nodes, me, self.config.lease) {
            let (lease, name, stated) = (self.config.lease, &other.registration.name, other.registration.lease);
            tracing::warn!(node = %me, ?lease, other = %other.number, other_name = name, other_lease = ?stated,
                "two nodes have different leases: each is taken over only after the longer one; set the same engine.lease on all nodes");
        }
        for (number, beat) in watch.see(&nodes, me, self.me.instant(), self.config.lease) {
            match self.store.fence(number, beat).await {
                Ok(true) => {
                    tracing::warn!(node = %number, "declared dead: no beat for a whole lease");
                    metrics::counter!("redrive_fenced").increment(1);
                    self.signals.listeners.tell(|| Event::Node { what: "fenced", number });
                    self.tell_fenced(number, &nodes).await;
                    self.wake.scanner.notify_one();
                    self.take_over_sagas(number).await;
                }
                Ok(false) => {}
                Err(e) => tracing::warn!(node = %number, error = %e, "fencing failed"),
            }
        }
        self.pass_on_stop_requests().await;
        if let Err(e) = self.follow_people().await {
            tracing::warn!(error = %e, "what people have paused and set could not be read");
        }
    }

    /// We are dead for the others, or the database, which has gone back in time, does not know us: we drop everything, and go on under a
    /// new number.
    async fn join_again(&self) {
        self.me.revoke();
        self.drop_all();
        if self.stopping.is_cancelled() || self.broken().is_some() {
            return; // retired by ourselves, fenced on our way out, or not able to work: no new number
        }
        tracing::warn!(node = %self.me.number(), "not among the living nodes any more; taking a new number");
        if let Err(e) = self.join().await {
            tracing::warn!(error = %e, "taking a new number failed; trying again");
        }
    }

    /// People are to know that a node died: its tasks go on elsewhere, but somebody should look why.
    async fn tell_fenced(&self, number: NodeNumber, nodes: &[Node]) {
        let name = nodes.iter().find(|n| n.number == number).map_or("unknown", |n| &n.registration.name);
        let said =
            format!("node {number} ({name}) was declared dead by node {}: no beat for a whole lease", self.me.number());
        self.tell_people("node.fenced", &format!("node {number}"), &said).await;
    }

    /// Writes a notice, which any node with channels delivers.
    pub(super) async fn tell_people(&self, kind: &str, who: &str, said: &str) {
        if let Err(e) = self.store.note_event(kind, who, said, self.clock.now()).await {
            tracing::warn!(error = %e, said, "people could not be told");
        }
    }

    /// Learns which methods people have paused, and what they have set.
    pub(super) async fn follow_people(&self) -> Result<()> {
        let _one_at_a_time = self.following.lock().await;
        let (paused, set) = self.store.wishes().await?;
        self.follow_set(set);
        let paused: Vec<Lane> = paused.iter().map(|p| Lane::of(&p.method)).collect();
        self.has_pauses.store(!paused.is_empty(), Ordering::Relaxed);
        if self.limits().set_paused(&paused) {
            self.wake.scanner.notify_one();
            self.wake.claimer.notify_one();
        }
        Ok(())
    }

    /// Handlers learn that a person wants their task stopped, from whichever process.
    async fn pass_on_stop_requests(&self) {
        let executing = self.running().executing();
        match self.store.stop_requests(&executing).await {
            Ok(wanted) => wanted.into_iter().for_each(|id| self.running().cancel(id)),
            Err(e) => tracing::warn!(error = %e, "stop requests could not be read"),
        }
    }

    /// Waits until the engine has ended.
    pub(super) async fn ended(&self) {
        self.stopping.cancelled().await;
        while !self.ended.load(Ordering::Acquire) {
            pause(Duration::from_millis(10)).await;
        }
    }

    /// Stops in order: no new work, grace for what runs, what is left is given back, what is decided is written.
    pub(super) async fn stop(&self) {
        self.stopping.cancel();
        if let Err(e) = self.store.announce_leave(self.me.number()).await {
            tracing::warn!(error = %e, "the others could not be told that this node leaves");
        }
        let idle = async {
            // What a caller runs has no slot.
            while self.limits().taken() > 0 || !self.running().executing().is_empty() {
                pause(Duration::from_millis(5)).await;
            }
        };
        let (idle, ()) = tokio::join!(tokio::time::timeout(self.config.grace, idle), self.delist());
        if idle.is_err() {
            self.running().cancel_all();
            self.give_back_all();
        }
        self.leave_gates().await;
        let written = async {
            while !self.running().is_empty() || !self.settler.is_idle() {
                pause(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(self.config.grace, written).await.is_err() {
            tracing::error!("outcomes could not be written before the stop; other nodes will take these tasks over");
        } else {
            self.me.revoke();
            if let Err(e) = self.store.retire(self.me.number()).await {
                tracing::warn!(error = %e, "the others could not be told that this node is gone; they will notice");
            }
        }
        self.ended.store(true, Ordering::Release);
        self.wake.beat.notify_one();
        self.end_services().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Engine, EngineConfig};

    /// The beat thread sends a beat, the node is fenced, takes a new number and beats under it; then the answer to the old
    /// beat arrives.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_late_answer_about_an_earlier_number_leaves_the_right_of_the_new_one() {
        let store = Store::open("sqlite::memory:").await.unwrap();
        let beat_interval = Duration::from_millis(50);
        let config = EngineConfig { beat_interval, lease: Duration::from_secs(60), ..EngineConfig::default() };
        let engine = Engine::builder(store.clone()).config(config).start().await.unwrap();
        let (me, old) = (&engine.0.me, engine.number());
        while !store.fence(old, store.nodes().await.unwrap()[0].beat).await.unwrap() {}
        while me.number() == old || !me.may_work() {
            tokio::task::yield_now().await;
        }
        let until = me.until();
        engine.0.beat(&store, old).await;
        assert!(me.until() >= until, "the right of node {} was revoked", me.number());
        engine.stop().await;
    }
}
