//! Addresses of names. `getaddrinfo` blocks a thread until it gives up, after 10 to 30 s, and nobody can cut it short; tokio has
//! 512 such threads. Whoever can enqueue requests to names whose servers say nothing could otherwise occupy all of them, and no
//! other name would be resolved.
//!
//! *State.* For each name that was asked for lately: its last answer, and the lookup that is under way.
//!
//! *Invariants.* One lookup of a name at a time; all who ask meanwhile share its answer. Lookups of names that have answered
//! lately have places of their own ([`PLACES`]), so names that have not cannot hold them up. Of the other places one zone
//! (the last two labels of a name) has [`EACH_ZONE`] at the most. A lookup keeps its place until its thread is free again, not
//! until those who asked for it have gone. Addresses are kept for [`KEEP_FOUND`], failures for [`KEEP_FAILED`].
//!
//! *Failure.* Who asks waits for [`PATIENCE`] at the most, for a place and for the answer together. Nothing here says which
//! addresses may be called: see `guard`.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redrive::{Clock, Timestamp};
use tokio::sync::{Semaphore, watch};

/// Lookups at once of names that have answered lately, and as many of other names.
const PLACES: usize = 128;
/// Lookups at once in one zone of names that have not answered lately.
const EACH_ZONE: usize = 8;
const KEEP_FOUND: Duration = Duration::from_secs(5);
const KEEP_FAILED: Duration = Duration::from_secs(2);
/// A name that has answered within this time counts as one that answers.
const LATELY: Duration = Duration::from_secs(600);
const PATIENCE: Duration = Duration::from_secs(5);
/// Names that are remembered.
const MOST_NAMES: usize = 10_000;

type Found = Result<Vec<SocketAddr>, String>;
type Finding = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;
type Lookup = dyn Fn(String) -> Finding + Send + Sync;

/// Finds addresses. Cheap to clone; clones share what they know.
#[derive(Clone)]
pub(super) struct Resolver(Arc<Inner>);

struct Inner {
    lookup: Box<Lookup>,
    clock: Clock,
    patience: Duration,
    names: Mutex<HashMap<String, Entry>>,
    answering: Arc<Semaphore>,
    others: Arc<Semaphore>,
    zones: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// The knowledge of one name.
#[derive(Default)]
struct Entry {
    last: Option<(Timestamp, Found)>,
    /// When it was found last.
    found_at: Option<Timestamp>,
    under_way: Option<watch::Receiver<Option<Found>>>,
}

impl Entry {
    fn fresh(&self, now: Timestamp) -> Option<Found> {
        let (at, found) = self.last.as_ref()?;
        let keep = if found.is_ok() { KEEP_FOUND } else { KEEP_FAILED };
        (now.since(*at) < keep).then(|| found.clone())
    }

    fn answers(&self, now: Timestamp) -> bool {
        self.found_at.is_some_and(|at| now.since(at) < LATELY)
    }
}

impl Resolver {
    /// By the system: its hosts file, its name servers.
    pub(super) fn system() -> Self {
        let lookup = |host: String| -> Finding {
            Box::pin(async move { Ok(tokio::net::lookup_host((host, 0)).await?.collect()) })
        };
        Self::with(lookup, Clock::system(), PATIENCE)
    }

    fn with(lookup: impl Fn(String) -> Finding + Send + Sync + 'static, clock: Clock, patience: Duration) -> Self {
        let places = || Arc::new(Semaphore::new(PLACES));
        let (answering, others) = (places(), places());
        let (names, zones) = (Mutex::default(), Mutex::default());
        Self(Arc::new(Inner { lookup: Box::new(lookup), clock, patience, names, answering, others, zones }))
    }

    /// Returns the addresses of a name, or why there are none.
    pub(super) async fn find(&self, host: &str) -> Found {
        let mut answer = match self.begin(host) {
            Begun::Known(found) => return found,
            Begun::UnderWay(answer) => answer,
        };
        let found = tokio::time::timeout(self.0.patience, answer.wait_for(Option::is_some)).await;
        match found {
            Ok(Ok(found)) => found.clone().unwrap_or_else(|| Err(LOST.into())),
            Ok(Err(_)) => Err(LOST.into()),
            Err(_) => Err(format!("no answer within {}", humantime::format_duration(self.0.patience))),
        }
    }

    /// Looks at what is known, and begins a lookup if that is too old and none is under way.
    fn begin(&self, host: &str) -> Begun {
        let now = self.0.clock.now();
        let mut names = lock(&self.0.names);
        if names.len() >= MOST_NAMES {
            names.retain(|_, entry| entry.under_way.is_some() || entry.answers(now));
            if names.len() >= MOST_NAMES {
                names.retain(|_, entry| entry.under_way.is_some());
            }
        }
        let entry = names.entry(host.to_owned()).or_default();
        if let Some(found) = entry.fresh(now) {
            return Begun::Known(found);
        }
        if let Some(answer) = &entry.under_way
            && answer.has_changed().is_ok()
        {
            return Begun::UnderWay(answer.clone());
        }
        let (tell, answer) = watch::channel(None);
        entry.under_way = Some(answer.clone());
        let (resolver, host, answers) = (self.clone(), host.to_owned(), entry.answers(now));
        tokio::spawn(async move {
            let found = resolver.look_up(&host, answers).await;
            resolver.note(&host, &found);
            tell.send_replace(Some(found));
        });
        Begun::UnderWay(answer)
    }

    /// Looks a name up when there is a place for it.
    async fn look_up(&self, host: &str, answers: bool) -> Found {
        let (zone, places) =
            if answers { (None, self.0.answering.clone()) } else { (Some(self.zone(host)), self.0.others.clone()) };
        let waiting = async {
            // First the zone's: who waits for it takes no place from others.
            let zone = match &zone {
                Some(zone) => Some(zone.clone().acquire_owned().await),
                None => None,
            };
            (zone, places.acquire_owned().await)
        };
        let Ok(_place) = tokio::time::timeout(self.0.patience, waiting).await else {
            return Err("too many lookups of names that do not answer are under way".into());
        };
        (self.0.lookup)(host.to_owned()).await.map_err(|e| e.to_string())
    }

    fn zone(&self, host: &str) -> Arc<Semaphore> {
        let mut zones = lock(&self.0.zones);
        if zones.len() >= MOST_NAMES {
            zones.retain(|_, places| Arc::strong_count(places) > 1);
        }
        zones.entry(zone_of(host)).or_insert_with(|| Arc::new(Semaphore::new(EACH_ZONE))).clone()
    }

    fn note(&self, host: &str, found: &Found) {
        let now = self.0.clock.now();
        let mut names = lock(&self.0.names);
        let entry = names.entry(host.to_owned()).or_default();
        entry.under_way = None;
        entry.last = Some((now, found.clone()));
        if found.is_ok() {
            entry.found_at = Some(now);
        }
    }
}

const LOST: &str = "the lookup was given up";

/// The way in which a lookup begins.
enum Begun {
    Known(Found),
    UnderWay(watch::Receiver<Option<Found>>),
}

/// The last two labels of a name, in small letters.
fn zone_of(host: &str) -> String {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let mut labels: Vec<&str> = host.rsplit('.').take(2).collect();
    labels.reverse();
    labels.join(".")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").field("names", &lock(&self.0.names).len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const SOON: Duration = Duration::from_millis(200);

    /// Names that begin with `slow` never answer, and those with `bad` do not exist.
    fn resolver() -> (Resolver, Clock, Arc<AtomicUsize>) {
        let (clock, asked) = (Clock::manual(Timestamp::from_millis(1_000_000)), Arc::new(AtomicUsize::new(0)));
        let count = asked.clone();
        let lookup = move |host: String| -> Finding {
            count.fetch_add(1, Ordering::AcqRel);
            Box::pin(async move {
                match host.as_str() {
                    slow if slow.starts_with("slow") => std::future::pending().await,
                    bad if bad.starts_with("bad") => Err(io::Error::other("no such name")),
                    _ => Ok(vec!["192.0.2.1:0".parse().unwrap()]),
                }
            })
        };
        (Resolver::with(lookup, clock.clone(), SOON), clock, asked)
    }

    async fn begin_slow(resolver: &Resolver, names: impl Iterator<Item = String>) {
        for name in names {
            _ = resolver.begin(&name);
        }
        for _ in 0..10 {
            tokio::task::yield_now().await; // each lookup begins in a task of its own
        }
    }

    #[tokio::test]
    async fn names_that_never_answer_hold_up_no_others() {
        let (resolver, clock, asked) = resolver();
        assert!(resolver.find("known.example.org").await.is_ok());
        // One zone takes its share and no more.
        begin_slow(&resolver, (0..600).map(|n| format!("slow{n}.tarpit.example"))).await;
        assert_eq!(asked.load(Ordering::Acquire), 1 + EACH_ZONE);
        assert!(resolver.find("new.example.net").await.is_ok());
        // Many zones take all places of the names that do not answer; those that do have their own.
        begin_slow(&resolver, (0..600).map(|n| format!("slow.tarpit{n}.example"))).await;
        assert!(asked.load(Ordering::Acquire) <= PLACES + 2);
        clock.advance(KEEP_FOUND);
        assert!(resolver.find("known.example.org").await.is_ok());
        // A new name has to wait, but not for ever.
        let said = resolver.find("other.example.net").await.unwrap_err();
        assert!(said.contains("no answer") || said.contains("too many lookups"), "{said}");
    }

    #[tokio::test]
    async fn who_asks_for_a_name_that_hangs_is_told_soon() {
        let (resolver, _, asked) = resolver();
        let all = futures_util::future::join_all((0..20).map(|_| resolver.find("slow.example.org"))).await;
        assert!(all.iter().all(|found| found.as_ref().unwrap_err().contains("no answer within 200ms")), "{all:?}");
        assert_eq!(asked.load(Ordering::Acquire), 1, "one lookup for all");
    }

    #[tokio::test]
    async fn answers_are_kept_for_a_short_time() {
        let (resolver, clock, asked) = resolver();
        for (host, keep) in [("good.example.org", KEEP_FOUND), ("bad.example.org", KEEP_FAILED)] {
            let before = asked.load(Ordering::Acquire);
            for _ in 0..2 {
                assert_eq!(resolver.find(host).await.is_ok(), host.starts_with("good"));
            }
            assert_eq!(asked.load(Ordering::Acquire) - before, 1);
            clock.advance(keep);
            _ = resolver.find(host).await;
            assert_eq!(asked.load(Ordering::Acquire) - before, 2);
        }
    }

    #[test]
    fn a_zone_is_the_end_of_a_name() {
        assert_eq!(zone_of("a.b.Tarpit.example."), "tarpit.example");
        assert_eq!((&*zone_of("localhost"), &*zone_of("x.y")), ("localhost", "x.y"));
    }
}
