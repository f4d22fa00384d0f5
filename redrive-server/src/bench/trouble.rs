//! A target in trouble, called by three nodes under default settings: one that fails at random, one that is down and comes back,
//! one that asks for a slower pace. What its gate, and its pace, cost and save.
//!
//! The nodes are in this process; each has connections, a client and a memory of its own, as it would have elsewhere. A run with
//! the gate is followed by the same without it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::ensure;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{AppendHeaders, IntoResponse, Response};
use indicatif::ProgressBar;
use redrive::gate::GateState;
use redrive::{Engine, Lane, Settings, Store};

use super::http::Service;
use super::ours::{enqueuer, start};
use super::raw::Raw;
use crate::http::{HttpCall, HttpDelivery, HttpRequest, METHOD};

const NODES: usize = 3;
/// Time that an answer takes.
const LATENCY: Duration = Duration::from_millis(300);
/// Tasks that are inserted at once.
const BATCH: u64 = 10_000;
/// By then each node knows that a gate has opened.
const KNOWN: Duration = Duration::from_millis(250);
const SECOND: Duration = Duration::from_secs(1);

/// Behaviour of the target.
#[derive(Clone, Copy, Debug)]
pub(super) enum Trouble {
    /// It fails this share of its calls at random.
    Fails(f64),
    /// It is well for this long, down for this long, and then fails this share.
    Down(Duration, Duration, f64),
    /// It takes so many calls a second, and answers others with 429, naming a second or nothing.
    Allows(u32, bool),
}

/// One answer of the target.
enum Answer {
    Good,
    Bad,
    TooMany(bool),
}

struct Target {
    trouble: Trouble,
    clock: Instant,
    /// Calls, good ones of each second, and the highest number of an attempt.
    calls: AtomicU64,
    good: Mutex<Vec<u64>>,
    refused: AtomicU64,
    attempts: AtomicU64,
    /// The second in which it counts what it allows, and how much that is so far.
    window: Mutex<(u64, u32)>,
}

impl Target {
    fn new(trouble: Trouble) -> Arc<Self> {
        Arc::new(Self {
            trouble,
            clock: start(),
            calls: AtomicU64::new(0),
            good: Mutex::default(),
            refused: AtomicU64::new(0),
            attempts: AtomicU64::new(0),
            window: Mutex::default(),
        })
    }

    fn answer(&self) -> Answer {
        let (n, at) = (self.calls.fetch_add(1, SeqCst), self.clock.elapsed());
        let share = match self.trouble {
            Trouble::Fails(share) => share,
            Trouble::Down(well, down, share) => match at {
                _ if at < well => 0.0,
                _ if at < well + down => 1.0,
                _ => share,
            },
            Trouble::Allows(most, names) => {
                let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
                if window.0 != at.as_secs() {
                    *window = (at.as_secs(), 0);
                }
                window.1 += 1;
                return if window.1 <= most { Answer::Good } else { Answer::TooMany(names) };
            }
        };
        if chance(n) < share { Answer::Bad } else { Answer::Good }
    }

    async fn respond(&self, headers: &HeaderMap) -> Response {
        let attempt = headers.get("redrive-attempt").and_then(|n| n.to_str().ok()?.parse().ok());
        self.attempts.fetch_max(attempt.unwrap_or(0), SeqCst);
        let answer = self.answer();
        pause(LATENCY).await;
        match answer {
            Answer::Good => {
                self.note_good(self.clock.elapsed().as_secs() as usize);
                StatusCode::OK.into_response()
            }
            Answer::Bad => StatusCode::SERVICE_UNAVAILABLE.into_response(),
            Answer::TooMany(names) => {
                self.refused.fetch_add(1, SeqCst);
                let named = [("retry-after", "1")].into_iter().filter(|_| names);
                (StatusCode::TOO_MANY_REQUESTS, AppendHeaders(named)).into_response()
            }
        }
    }

    fn note_good(&self, second: usize) {
        let mut good = self.good.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = good.len().max(second + 1);
        good.resize(seconds, 0);
        good.iter_mut().skip(second).take(1).for_each(|n| *n += 1);
    }

    /// Good answers in these seconds.
    fn good(&self, from: u64, to: u64) -> u64 {
        let good = self.good.lock().unwrap_or_else(PoisonError::into_inner);
        good.iter().take(to as usize).skip(from as usize).sum()
    }

    /// The first second from `from` on in which there were more than `least` good answers, counted from there.
    fn first(&self, from: u64, least: u64) -> Option<u64> {
        let good = self.good.lock().unwrap_or_else(PoisonError::into_inner);
        let found = good.iter().skip(from as usize).position(|n| *n > least);
        found.and_then(|second| u64::try_from(second).ok())
    }
}

/// From 0 to 1, for the n-th call.
fn chance(n: u64) -> f64 {
    let mut hasher = DefaultHasher::new();
    n.hash(&mut hasher);
    hasher.finish() as f64 / u64::MAX as f64
}

/// Three nodes, a target, and tasks for it.
struct World {
    target: Arc<Target>,
    lane: Lane,
    nodes: Vec<Engine>,
    /// Ends with this.
    _service: Service,
}

impl World {
    async fn start(
        url: &str,
        store: &Store,
        gated: bool,
        trouble: Trouble,
        tasks: u64,
        bar: &ProgressBar,
    ) -> anyhow::Result<Self> {
        let target = Target::new(trouble);
        let answer = async |State(target): State<Arc<Target>>, headers: HeaderMap| target.respond(&headers).await;
        let service = Service::start(Router::new().fallback(answer).with_state(target.clone())).await?;
        let toml = format!("[http]\nallow = ['127.0.0.1']\ngate = {{ enabled = {gated} }}");
        let settings = Settings::parse(&toml, std::iter::empty())?;
        let delivery = HttpDelivery::new(&settings)?;
        fill(store, &delivery, &service.url, tasks, bar).await?;
        let mut nodes = Vec::new();
        for _ in 0..NODES {
            let builder = Engine::builder(Store::open(url).await?).settings(settings.clone()).discover(false);
            nodes.push(HttpDelivery::new(&settings)?.install(builder).start().await?);
        }
        let lane = Lane::part(METHOD, service.url.trim_start_matches("http://"));
        Ok(Self { target, lane, nodes, _service: service })
    }

    async fn end(self, raw: &Raw) -> anyhow::Result<()> {
        for node in self.nodes {
            node.stop().await;
        }
        raw.remove_lanes(&[self.lane]).await?;
        raw.execute(format!("DELETE FROM redrive_gate WHERE lane = {}", self.lane.0)).await?;
        Ok(())
    }

    /// Lets time go by until so many seconds after the start of the target.
    async fn until(&self, seconds: u64, bar: &ProgressBar) {
        bar.set_length(seconds);
        while self.target.clock.elapsed() < Duration::from_secs(seconds) {
            pause(SECOND / 4).await;
            bar.set_position(self.target.clock.elapsed().as_secs());
        }
    }
}

async fn fill(store: &Store, delivery: &HttpDelivery, url: &str, tasks: u64, bar: &ProgressBar) -> anyhow::Result<()> {
    let writer = enqueuer(store).await?;
    bar.set_length(tasks);
    for first in (0..tasks).step_by(BATCH as usize) {
        let calls = (first..tasks.min(first + BATCH))
            .map(|n| HttpCall::new(delivery, HttpRequest::post(url).with_body(n.to_string())));
        writer.enqueue_many(calls.collect::<redrive::Result<Vec<_>>>()?).await?;
        bar.inc(BATCH);
    }
    writer.stop().await;
    Ok(())
}

/// The database, as three nodes and the one who looks have it.
pub(super) struct On<'a> {
    pub(super) url: &'a str,
    pub(super) store: &'a Store,
    pub(super) raw: &'a Raw,
    pub(super) bar: &'a ProgressBar,
}

impl On<'_> {
    /// Good answers in these seconds of the target's time.
    pub(super) async fn good(
        &self,
        trouble: Trouble,
        gated: bool,
        tasks: u64,
        from: u64,
        to: u64,
    ) -> anyhow::Result<u64> {
        let world = World::start(self.url, self.store, gated, trouble, tasks, self.bar).await?;
        world.until(to, self.bar).await;
        let good = world.target.good(from, to);
        world.end(self.raw).await?;
        Ok(good)
    }

    /// A target that is well, then down, then well.
    pub(super) async fn outage(&self, well: u64, down: u64, tasks: u64) -> anyhow::Result<Outage> {
        let trouble = Trouble::Down(Duration::from_secs(well), Duration::from_secs(down), 0.0);
        let world = World::start(self.url, self.store, true, trouble, tasks, self.bar).await?;
        let target = &world.target;
        while !self.store.gates().await?.iter().any(|gate| gate.lane == world.lane && gate.state != GateState::Closed) {
            ensure!(target.clock.elapsed() < Duration::from_secs(well + 60), "the gate has not opened");
            pause(SECOND / 20).await;
        }
        let at_opening = target.calls.load(SeqCst);
        pause(KNOWN).await;
        let known = target.calls.load(SeqCst);
        world.until(well + down, self.bar).await;
        let probes = target.calls.load(SeqCst) - known;
        world.until(well + down + 100, self.bar).await;
        let full = target.good(well / 2, well) / (well - well / 2);
        let first = target.first(well + down, 0);
        let whole = target.first(well + down, full * 9 / 10);
        world.end(self.raw).await?;
        Ok(Outage { strays: known - at_opening, probes, first, whole })
    }

    /// A target that allows so many calls a second: until all are done.
    pub(super) async fn slowed(&self, allows: u32, names: bool, tasks: u64) -> anyhow::Result<Slowed> {
        let world = World::start(self.url, self.store, true, Trouble::Allows(allows, names), tasks, self.bar).await?;
        let (target, started) = (&world.target, start());
        self.bar.set_length(tasks);
        self.bar.set_position(0);
        while target.good(0, u64::MAX) < tasks {
            ensure!(started.elapsed() < Duration::from_secs(3_600), "{} of {tasks} are done", target.good(0, u64::MAX));
            pause(SECOND / 4).await;
            self.bar.set_position(target.good(0, u64::MAX));
        }
        let took = started.elapsed();
        let (refused, attempts) = (target.refused.load(SeqCst), target.attempts.load(SeqCst));
        let dead = self.raw.one(&format!("SELECT COUNT(*) FROM retry_dead WHERE lane = {}", world.lane.0)).await?;
        world.end(self.raw).await?;
        Ok(Slowed { took, refused, attempts, dead })
    }
}

/// Figures of an outage.
pub(super) struct Outage {
    /// Calls that reached the target while the news of the open gate spread.
    pub(super) strays: u64,
    /// Calls that reached it after that, until it was back.
    pub(super) probes: u64,
    /// Seconds from its return to the first success, and to nine tenths of the rate of before.
    pub(super) first: Option<u64>,
    pub(super) whole: Option<u64>,
}

/// Figures of a target that asks for a slower pace.
pub(super) struct Slowed {
    pub(super) took: Duration,
    pub(super) refused: u64,
    /// The highest number of an attempt that it saw.
    pub(super) attempts: u64,
    pub(super) dead: i64,
}

#[expect(clippy::disallowed_methods, reason = "it lets time go by")]
async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}
