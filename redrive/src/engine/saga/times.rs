//! The time, for sagas that wait for one.
//!
//! *State.* Time needs no tasks: each saga's row says when it must be looked at. The node that wrote that remembers it, if it is soon.
//!
//! *Invariants.* What is remembered is due within a minute, and only where it is looked after: however many sagas wait for days, memory
//! does not grow. For what is later, and for the times of nodes that are gone, one node, which holds a lock, looks into the table: a moment after the next time in
//! it, since whoever remembers has been there by then, and now and then in any case. The lock saves work; what keeps things right is the
//! journal, in which a look that comes to nothing leaves nothing.
//!
//! *Failure.* Who remembers does not wait for what is written; who looks into the table does, but not for long: a saga whose row somebody
//! holds keeps no other from its time. When the holder of the lock dies, whoever declares it dead frees the lock and looks at once, so nobody waits for it to
//! expire. A saga that cannot be looked at, because it cannot be read for example, does not keep others from it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::{Timestamp, pause};
use crate::error::Result;
use crate::store::Lock;
use crate::task::NodeNumber;

use super::lost::Walk;
use super::tell::Tell;
use crate::engine::{Shared, lock};

/// The lock of who looks for sagas whose time has come and that nobody has in memory.
const LOCK: &str = "sagas";
/// How often that is, at the least; and how often the lock is renewed.
const SWEEP: Duration = Duration::from_secs(5);
/// How long a time is left to whoever has it in memory.
const LAG: Duration = Duration::from_millis(250);
/// What is later than this is not remembered.
const SOON: Duration = Duration::from_secs(60);
/// How many it takes at once, and how long it waits for what comes of them before it goes on with the next.
const SWEPT: u32 = 1_000;
const SWEPT_FOR: Duration = Duration::from_secs(1);

/// What is remembered.
#[derive(Debug, Default)]
pub(super) struct Times {
    /// Sagas that are to be looked at, and when.
    timers: Mutex<BTreeSet<(Timestamp, String)>>,
    /// Whether anybody looks after them.
    kept: AtomicBool,
    sooner: Notify,
    /// A node has died: what it had in memory is for others.
    orphaned: Notify,
}

impl Times {
    fn move_timer(&self, id: &str, was: Option<Timestamp>, at: Option<Timestamp>, now: Timestamp) {
        let mut timers = lock(&self.timers);
        was.into_iter().for_each(|was| _ = timers.remove(&(was, id.to_owned())));
        let kept = self.kept.load(Ordering::Acquire);
        let Some(at) = at.filter(|at| kept && *at <= now + SOON) else { return };
        let is_next = timers.first().is_none_or(|(next, _)| at < *next);
        timers.insert((at, id.to_owned()));
        if is_next {
            self.sooner.notify_one();
        }
    }
}

impl Shared {
    /// A saga is to be looked at then, and no more when it was to be.
    pub(super) fn look_at(&self, id: &str, was: Option<Timestamp>, at: Option<Timestamp>) {
        if was != at {
            self.sagas.times.move_timer(id, was, at, self.clock.now());
        }
    }

    /// Looks at those whose time has come, as far as we remember; when the next one's will have.
    fn look_at_remembered(&self, now: Timestamp) -> Option<Timestamp> {
        let mut timers = lock(&self.sagas.times.timers);
        let later = timers.split_off(&(now + Duration::from_millis(1), String::new()));
        let due: BTreeSet<_> = std::mem::replace(&mut *timers, later);
        due.into_iter().for_each(|(_, id)| self.sagas.journals.look(id));
        timers.first().map(|(at, _)| *at)
    }

    /// Looks at all whose time has come; how many moved on, as far as that was heard in time. One that cannot, because it cannot be read or
    /// is held by somebody, does not keep the others from it.
    pub(super) async fn look_at_due_sagas(&self, now: Timestamp) -> Result<usize> {
        let (mut moved, mut last) = (0, None);
        loop {
            let due = self.store.due_sagas(last.as_ref(), now, SWEPT).await?;
            let looks = due.iter().map(|(_, id)| self.sagas.journals.tell(id, Tell::Look));
            let looks = looks.map(|look| tokio::time::timeout(SWEPT_FOR, look));
            let answers = futures_util::future::join_all(looks).await;
            moved += answers.iter().filter(|answer| matches!(answer, Ok(Ok(a)) if a.is_new)).count();
            if due.len() < SWEPT as usize {
                return Ok(moved);
            }
            last = due.into_iter().next_back();
        }
    }

    /// A node was declared dead: whoever declares it takes care that its sagas' times are looked after at once.
    pub(in crate::engine) async fn take_over_sagas(&self, dead: NodeNumber) {
        let freed = match self.store.held_lock(LOCK, self.clock.now()).await {
            Ok(Some(lock)) if lock.owner == dead.to_string() => self.store.unlock(&lock).await.map(|_| ()),
            other => other.map(|_| ()),
        };
        if let Err(e) = freed {
            tracing::warn!(error = %e, "the lock of the sagas' times could not be freed; it expires");
        }
        self.sagas.times.orphaned.notify_one();
    }
}

/// The time, for sagas that wait.
pub(in crate::engine) async fn run(shared: Arc<Shared>) {
    if !shared.sagas.any {
        return; // those who run steps look at the time, too
    }
    tokio::join!(remember(&shared), sweep_all(&shared));
}

/// Looks at what is remembered, at its time.
async fn remember(shared: &Shared) {
    shared.sagas.times.kept.store(true, Ordering::Release);
    loop {
        let now = shared.clock.now();
        let next = shared.look_at_remembered(now).unwrap_or(Timestamp::MAX);
        tokio::select! {
            () = pause(next.since(now).clamp(Duration::from_millis(1), SWEEP)) => {}
            () = shared.sagas.times.sooner.notified() => {}
            () = shared.stopping.cancelled() => return,
        }
    }
}

/// Looks for what nobody remembers.
async fn sweep_all(shared: &Shared) {
    let (mut held, mut walk) = (None, Walk::default());
    loop {
        let now = shared.clock.now();
        let look = sweep(shared, &mut held, &mut walk, now).await.unwrap_or_else(|e| {
            tracing::warn!(error = %e, "sagas whose time has come could not be looked for; trying again");
            now + SWEEP
        });
        tokio::select! {
            () = pause(look.since(shared.clock.now()).clamp(Duration::from_millis(1), SWEEP)) => {}
            () = shared.sagas.times.orphaned.notified() => {}
            () = shared.stopping.cancelled() => break,
        }
    }
    if let Some(lock) = held
        && let Err(e) = shared.store.unlock(&lock).await
    {
        tracing::debug!(error = %e, "the lock of the sagas' times could not be given back; it expires");
    }
}

/// Looks at the sagas whose time has come, if that is ours to do; when to look again.
async fn sweep(shared: &Shared, held: &mut Option<Lock>, walk: &mut Walk, now: Timestamp) -> Result<Timestamp> {
    if !shared.me.may_work() {
        return Ok(now + LAG);
    }
    // It is renewed long before it expires, but not at every look: that is a write.
    let is_ours = held.as_ref().is_some_and(|lock| now + SWEEP * 2 < lock.expires_at);
    if !is_ours {
        *held = shared.store.lock(LOCK, &shared.me.number().to_string(), SWEEP * 3, now).await?;
    }
    if held.is_none() {
        return Ok(now + SWEEP); // another node does it for all
    }
    shared.look_at_due_sagas(now).await?;
    if let Err(e) = shared.look_for_lost_work(walk, now).await {
        tracing::warn!(error = %e, "sagas whose tasks are gone could not be looked for; trying again");
    }
    Ok(next_look(now, shared.store.next_due_saga(now).await?))
}

/// A moment after the next time in the table, but not at once and not too late: others may write an earlier one.
fn next_look(now: Timestamp, next: Option<Timestamp>) -> Timestamp {
    next.map_or(now + SWEEP, |next| (next + LAG).clamp(now + LAG, now + SWEEP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_soon_is_remembered_where_somebody_looks_after_it() {
        let (times, now) = (Times::default(), Timestamp::from_millis(1_800_000_000_000));
        let after = |seconds: u64| Some(now + Duration::from_secs(seconds));
        let kept = || lock(&times.timers).len();
        times.move_timer("a", None, after(1), now);
        assert_eq!(kept(), 0, "nobody would ever take it out again");
        times.kept.store(true, Ordering::Release);
        times.move_timer("a", None, after(60), now);
        times.move_timer("b", None, after(61), now);
        assert_eq!(kept(), 1, "the sweep finds what is later");
        times.move_timer("a", after(60), after(3_600), now);
        assert_eq!(kept(), 0);
    }

    #[test]
    fn the_table_is_looked_at_a_moment_after_the_next_time_in_it() {
        let now = Timestamp::from_millis(1_800_000_000_000);
        let after = |ms: u64| now + Duration::from_millis(ms);
        assert_eq!(next_look(now, None), now + SWEEP);
        assert_eq!(next_look(now, Some(after(1_000))), after(1_250));
        assert_eq!(next_look(now, Some(after(1))), after(251), "not before those who remember it");
        assert_eq!(next_look(now, Some(after(60_000))), now + SWEEP);
    }
}
