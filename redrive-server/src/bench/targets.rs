//! A hundred targets, of which one hangs: what the others feel of it.
//!
//! Requests come at a steady pace, to one target after the other. What is measured, for each request to the other 99, is the time
//! from the call of enqueue until the target has it. The one that hangs has its share of them, and a backlog before that is ten
//! times what it may have under way, so that throughout the run all of its places are taken, run into the time limit, and
//! are taken again.
//!
//! Targets are named in the settings (`http.NAME`), or are plain hosts (`http`, split by host): two ways to the same promise.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redrive::{Engine, Lane, PolicyPatch, Settings, Store};
use tokio::task::JoinSet;

use super::http::Service;
use super::ours::start;
use super::raw::Raw;
use crate::http::{HttpCall, HttpDelivery, HttpRequest, METHOD, method_of};

const TARGETS: usize = 100;
/// The one that hangs.
const BAD: usize = 0;
/// Requests of a second, to all targets together.
const PACE: u64 = 1_000;
/// Requests that do not count: until connections are open.
const WARM_UP: u64 = 2 * PACE;
const COUNTED: u64 = 10 * PACE;
/// What waits for the bad target when the others' requests begin.
const BACKLOG: u64 = 1_000;
/// After this time an attempt at the bad target has failed.
const TIMEOUT: &str = "2s";

/// How targets are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Name,
    Host,
}

/// Moments at which targets were sent requests, by number, in µs since a clock was started; 0 if not yet.
type Arrivals = Arc<Vec<AtomicU64>>;

/// How many requests a run counts.
pub(super) const fn counted() -> u64 {
    COUNTED / TARGETS as u64 * (TARGETS as u64 - 1)
}

/// How long each request to the 99 others took; `hangs` says whether the hundredth hangs.
pub(super) async fn run(store: &Store, raw: &Raw, by: By, hangs: bool) -> anyhow::Result<Vec<Duration>> {
    let world = World::start(by, hangs).await?;
    let engine = world.engine(store).await?;
    if hangs {
        let backlog: redrive::Result<Vec<_>> = (0..BACKLOG).map(|_| world.call(BAD, WARM_UP + COUNTED)).collect();
        engine.enqueue_many(backlog?).await?;
    }
    let sent = world.send(&engine).await?;
    world.arrived().await;
    let delays = sent.into_iter().filter(|(n, _)| *n >= WARM_UP && is_good(*n));
    let delays = delays.map(|(n, sent)| world.arrival(n).unwrap_or_default().saturating_sub(sent)).collect();
    engine.stop().await;
    raw.remove_lanes(&world.lanes()).await?;
    Ok(delays)
}

fn target_of(n: u64) -> usize {
    (n % TARGETS as u64) as usize
}

fn is_good(n: u64) -> bool {
    target_of(n) != BAD
}

struct World {
    by: By,
    services: Vec<Service>,
    settings: Settings,
    delivery: HttpDelivery,
    arrivals: Arrivals,
    clock: Instant,
}

impl World {
    async fn start(by: By, hangs: bool) -> anyhow::Result<Self> {
        let clock = start();
        let arrivals: Arrivals = Arc::new((0..WARM_UP + COUNTED).map(|_| AtomicU64::new(0)).collect());
        let mut services = Vec::new();
        for target in 0..TARGETS {
            let arrivals = arrivals.clone();
            let seen = move |body: &axum::body::Bytes| note(&arrivals, body, clock.elapsed());
            services.push(if hangs && target == BAD {
                Service::hanging().await
            } else {
                Service::answering(seen).await
            }?);
        }
        let settings = Settings::parse(&toml(by, &services), std::iter::empty())?;
        let delivery = HttpDelivery::new(&settings)?;
        Ok(Self { by, services, settings, delivery, arrivals, clock })
    }

    async fn engine(&self, store: &Store) -> anyhow::Result<Engine> {
        let builder = Engine::builder(store.clone()).settings(self.settings.clone()).discover(false);
        Ok(self.delivery.clone().install(builder).start().await?)
    }

    /// Request `n` to this target. Should the run be interrupted, the task goes by itself.
    fn call(&self, target: usize, n: u64) -> redrive::Result<HttpCall> {
        let request = match self.by {
            By::Name => HttpRequest::to_target(name(target), "/"),
            By::Host => HttpRequest::post(self.services[target].url.clone()),
        };
        let mut policy = PolicyPatch::default();
        for (field, value) in [("timeout", TIMEOUT), ("max_duration", "1m"), ("on_exhausted", "drop")] {
            policy.set(field, value)?;
        }
        Ok(HttpCall::new(&self.delivery, request.with_body(n.to_string()))?.policy(policy))
    }

    /// Sends all requests at their pace; the number of each, and when it was enqueued.
    #[expect(clippy::disallowed_methods, reason = "a benchmark keeps a pace")]
    async fn send(&self, engine: &Engine) -> anyhow::Result<Vec<(u64, Duration)>> {
        let mut pace = tokio::time::interval(Duration::from_secs(1) / PACE as u32);
        let mut enqueues: JoinSet<redrive::Result<(u64, Duration)>> = JoinSet::new();
        for n in 0..WARM_UP + COUNTED {
            pace.tick().await;
            let (engine, call, clock) = (engine.clone(), self.call(target_of(n), n)?, self.clock);
            enqueues.spawn(async move {
                let sent = clock.elapsed();
                engine.enqueue(call).await.map(|_| (n, sent))
            });
        }
        let mut sent = Vec::new();
        while let Some(enqueue) = enqueues.join_next().await {
            sent.push(enqueue??);
        }
        Ok(sent)
    }

    fn arrival(&self, n: u64) -> Option<Duration> {
        let micros = self.arrivals.get(n as usize)?.load(Ordering::Acquire);
        (micros > 0).then(|| Duration::from_micros(micros))
    }

    /// All that do not hang have what they were sent.
    async fn arrived(&self) {
        for n in (0..WARM_UP + COUNTED).filter(|n| is_good(*n)) {
            while self.arrival(n).is_none() {
                tokio::task::yield_now().await;
            }
        }
    }

    /// What is to be removed afterwards.
    fn lanes(&self) -> Vec<Lane> {
        let host = |service: &Service| Lane::part(METHOD, service.url.trim_start_matches("http://"));
        match self.by {
            By::Name => (0..TARGETS).map(|target| Lane::of(&method_of(Some(&name(target))))).collect(),
            By::Host => self.services.iter().map(host).collect(),
        }
    }
}

fn name(target: usize) -> String {
    format!("bench-{target}")
}

fn toml(by: By, services: &[Service]) -> String {
    let target = |(i, service): (usize, &Service)| {
        format!("[targets.{}]\nbase_url = '{}'\nallow_private = true\n", name(i), service.url)
    };
    match by {
        By::Name => services.iter().enumerate().map(target).collect(),
        By::Host => "[http]\nallow = ['127.0.0.1']".into(),
    }
}

fn note(arrivals: &Arrivals, body: &[u8], at: Duration) {
    let n = std::str::from_utf8(body).ok().and_then(|text| text.parse::<usize>().ok());
    if let Some(arrival) = n.and_then(|n| arrivals.get(n)) {
        _ = arrival.compare_exchange(0, at.as_micros() as u64, Ordering::AcqRel, Ordering::Relaxed);
    }
}
