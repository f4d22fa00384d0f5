//! What takes long to find out when there are millions of rows: found once for all who look.
//!
//! *Invariants.* What was quick to find last time is found anew for everybody who asks. What was not is shown as it was up to a
//! minute ago, while it is found anew beside: somebody who opens a page does not wait for it, and a hundred open pages do not ask the
//! database a hundred times. At most one looks at a time, and goes on looking if whoever asked has gone: the next has it then.
//!
//! *Failure.* What could not be found beside stays as it was; who comes after a minute waits for it, and is told why it fails.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use redrive::{Clock, Result, Timestamp};
use tokio::sync::OwnedMutexGuard;

/// Quick enough to do it for everybody.
const QUICK: Duration = Duration::from_millis(30);
/// What is younger is not looked for again.
const FRESH: Duration = Duration::from_secs(2);
/// What is older is not shown.
const STALE: Duration = Duration::from_secs(60);

/// Something that is costly to find out.
pub(crate) struct Kept<T>(Arc<Inner<T>>);

struct Inner<T> {
    last: Mutex<Option<Last<T>>>,
    making: Arc<tokio::sync::Mutex<()>>,
}

struct Last<T> {
    at: Timestamp,
    took: Duration,
    value: Arc<T>,
}

impl<T> Clone for Last<T> {
    fn clone(&self) -> Self {
        Self { at: self.at, took: self.took, value: self.value.clone() }
    }
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self(Arc::new(Inner { last: Mutex::new(None), making: Arc::default() }))
    }
}

impl<T> Clone for Kept<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Send + Sync + 'static> Kept<T> {
    /// As it is, or was a moment ago.
    pub(super) async fn get(&self, clock: &Clock, make: BoxFuture<'static, Result<T>>) -> Result<Arc<T>> {
        let now = clock.now();
        let last = self.0.last();
        let slow = last.filter(|last| last.took >= QUICK && now.since(last.at) < STALE);
        let Some(slow) = slow else {
            let only = self.0.making.clone().lock_owned().await;
            return match self.0.last().filter(|last| last.at > now) {
                Some(made) => Ok(made.value), // by whoever we waited for
                None => self.0.clone().make_to_its_end(clock.clone(), make, only).await,
            };
        };
        if now.since(slow.at) >= FRESH {
            let (inner, clock) = (self.0.clone(), clock.clone());
            tokio::spawn(async move {
                if let Ok(_only) = inner.making.try_lock()
                    && let Err(e) = inner.make(&clock, make).await
                {
                    tracing::debug!(error = %e, "could not be found; shown as it was");
                }
            });
        }
        Ok(slow.value)
    }
}

impl<T> Inner<T> {
    fn last(&self) -> Option<Last<T>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Though whoever asks may go.
    async fn make_to_its_end(
        self: Arc<Self>,
        clock: Clock,
        make: BoxFuture<'static, Result<T>>,
        only: OwnedMutexGuard<()>,
    ) -> Result<Arc<T>>
    where
        T: Send + Sync + 'static,
    {
        let made = tokio::spawn(async move {
            let made = self.make(&clock, make).await;
            drop(only);
            made
        });
        match made.await {
            Ok(made) => made,
            Err(e) => match e.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => std::future::pending().await, // the runtime is going, and this with it
            },
        }
    }

    async fn make(&self, clock: &Clock, make: BoxFuture<'static, Result<T>>) -> Result<Arc<T>> {
        let began = clock.now();
        let value = Arc::new(make.await?);
        let at = clock.now();
        let last = Last { at, took: at.since(began), value: value.clone() };
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(last);
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Something that takes `ms` to find.
    async fn takes(clock: Clock, ms: u64, value: u32) -> Result<u32> {
        clock.advance(Duration::from_millis(ms));
        Ok(value)
    }

    #[tokio::test]
    async fn what_is_quick_is_always_new_and_what_is_slow_is_shown_as_it_was() {
        let (kept, clock) = (Kept::default(), Clock::manual(Timestamp::from_millis(1_800_000_000_000)));
        let find = async |ms, value| *kept.get(&clock, Box::pin(takes(clock.clone(), ms, value))).await.unwrap();
        assert_eq!((find(1, 1).await, find(1, 2).await), (1, 2));
        assert_eq!((find(500, 3).await, find(500, 4).await), (3, 3), "it is not looked for again at once");
        clock.advance(FRESH);
        assert_eq!(find(500, 5).await, 3, "nobody waits for it");
        while find(500, 6).await == 3 {
            tokio::task::yield_now().await;
        }
        clock.advance(STALE);
        assert_eq!(find(500, 7).await, 7, "what is too old is waited for");
    }

    #[tokio::test]
    async fn what_was_begun_is_found_though_nobody_waits_for_it_any_more() {
        let (kept, clock) = (Kept::default(), Clock::manual(Timestamp::from_millis(1_800_000_000_000)));
        let (found, finds) = tokio::sync::oneshot::channel();
        let slow = {
            let clock = clock.clone();
            Box::pin(async move {
                let value = finds.await.unwrap();
                takes(clock, 500, value).await
            })
        };
        let asker = kept.get(&clock, slow);
        assert!(tokio::time::timeout(Duration::ZERO, asker).await.is_err(), "it went before anything was found");
        found.send(7).unwrap();
        let next = kept.get(&clock, Box::pin(takes(clock.clone(), 500, 8)));
        assert_eq!(*next.await.unwrap(), 7);
    }
}
