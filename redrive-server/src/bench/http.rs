//! HTTP tasks end to end: requests that are delivered to a service on this machine, beside what the same client does by itself.
//!
//! The service is in this process and keeps connections alive. The client by itself is the one that delivers, with as many
//! requests at once and the same requests: method, headers, body. So the ratio is the price of writing requests down, claiming
//! them, and writing what became of them. Both are paid with the same cores, and so is the service.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use axum::Router;
use axum::body::Bytes;
use axum::serve::ListenerExt;
use redrive::{Engine, Settings, Store};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};

use super::ours::{Goal, enqueuer, start, written};
use crate::http::{HttpCall, HttpDelivery, HttpRequest};

/// The target's name; its method is `http.bench`.
const TARGET: &str = "bench";
/// Tasks that are enqueued together.
const BATCH: u64 = 500;
/// Callers that enqueue at the same time.
const CALLERS: u64 = 4;

/// An HTTP server on loopback; it ends with this.
pub(super) struct Service {
    pub(super) url: String,
    serving: AbortHandle,
}

impl Service {
    /// Answers every request with 200, after `seen` has been given its body.
    pub(super) async fn answering(seen: impl Fn(&Bytes) + Clone + Send + Sync + 'static) -> anyhow::Result<Self> {
        let answer = async move |body: Bytes| {
            seen(&body);
            "ok"
        };
        Self::start(Router::new().fallback(answer)).await
    }

    /// Takes requests and never answers.
    pub(super) async fn hanging() -> anyhow::Result<Self> {
        Self::start(Router::new().fallback(async || std::future::pending::<()>().await)).await
    }

    /// Answers as the router says.
    pub(super) async fn start(router: Router) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("listening on loopback")?;
        let url = format!("http://{}", listener.local_addr()?);
        let listener = listener.tap_io(|stream| _ = stream.set_nodelay(true));
        let serving = tokio::spawn(async move { axum::serve(listener, router).await }).abort_handle();
        Ok(Self { url, serving })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// A service, what delivers to it, and the number of requests to be waited for.
struct World {
    service: Service,
    goal: Arc<Goal>,
    settings: Settings,
    delivery: HttpDelivery,
}

impl World {
    async fn expecting(requests: u64, at_once: usize) -> anyhow::Result<Self> {
        let goal = Goal::of(requests);
        let reached = goal.clone();
        let service = Service::answering(move |_| reached.step()).await?;
        let toml =
            format!("[targets.{TARGET}]\nbase_url = '{}'\nallow_private = true\nconcurrency = {at_once}", service.url);
        let settings = Settings::parse(&toml, std::iter::empty())?;
        let delivery = HttpDelivery::new(&settings)?;
        Ok(Self { service, goal, settings, delivery })
    }

    async fn engine(&self, store: &Store) -> anyhow::Result<Engine> {
        let builder = Engine::builder(store.clone()).settings(self.settings.clone()).discover(false);
        Ok(self.delivery.clone().install(builder).start().await?)
    }

    fn calls(&self, from: u64, to: u64) -> redrive::Result<Vec<HttpCall>> {
        let request =
            |n| HttpRequest { headers: own_headers(), ..HttpRequest::to_target(TARGET, PATH) }.with_body(body(n));
        (from..to).map(|n| HttpCall::new(&self.delivery, request(n))).collect()
    }

    /// All are delivered, and every outcome is in the database.
    async fn done(&self, engine: &Engine) {
        self.goal.reached.notified().await;
        written(engine).await;
    }
}

const PATH: &str = "/orders";

fn own_headers() -> std::collections::BTreeMap<String, String> {
    [("content-type".to_owned(), "application/json".to_owned())].into()
}

fn body(n: u64) -> String {
    format!(r#"{{"type":"order.paid","order":"{n:010}","amount":"129.90","currency":"EUR","customer":"c-{n}"}}"#)
}

/// The method whose tasks are to be removed.
pub(super) fn method() -> String {
    crate::http::method_of(Some(TARGET))
}

/// Tasks that are there already: from the start of the engine until every outcome is written.
pub(super) async fn deliver(store: &Store, tasks: u64, at_once: usize) -> anyhow::Result<Duration> {
    let world = World::expecting(tasks, at_once).await?;
    let writer = enqueuer(store).await?;
    for first in (0..tasks).step_by(BATCH as usize) {
        writer.enqueue_many(world.calls(first, (first + BATCH).min(tasks))?).await?;
    }
    writer.stop().await;
    let started = start();
    let engine = world.engine(store).await?;
    world.done(&engine).await;
    let took = started.elapsed();
    engine.stop().await;
    Ok(took)
}

/// Callers that enqueue while the engine delivers what they enqueue.
pub(super) async fn enqueue_and_deliver(store: &Store, tasks: u64, at_once: usize) -> anyhow::Result<Duration> {
    let world = Arc::new(World::expecting(tasks, at_once).await?);
    let engine = world.engine(store).await?;
    let started = start();
    let mut callers: JoinSet<redrive::Result<()>> = JoinSet::new();
    for caller in 0..CALLERS {
        let (engine, world) = (engine.clone(), world.clone());
        callers.spawn(async move {
            for first in (caller * BATCH..tasks).step_by((CALLERS * BATCH) as usize) {
                engine.enqueue_many(world.calls(first, (first + BATCH).min(tasks))?).await?;
            }
            Ok(())
        });
    }
    while let Some(caller) = callers.join_next().await {
        caller??;
    }
    world.done(&engine).await;
    let took = started.elapsed();
    engine.stop().await;
    Ok(took)
}

/// The same requests by the same client, without any store.
pub(super) async fn client_alone(tasks: u64, at_once: usize) -> anyhow::Result<Duration> {
    let world = World::expecting(tasks, at_once).await?;
    let (url, headers) = (format!("{}{PATH}", world.service.url), sent_headers()?);
    let next = Arc::new(AtomicU64::new(0));
    let started = start();
    let mut callers: JoinSet<anyhow::Result<()>> = JoinSet::new();
    for _ in 0..at_once {
        let (client, url, headers, next) =
            (world.delivery.client().clone(), url.clone(), headers.clone(), next.clone());
        callers.spawn(async move {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= tasks {
                    return Ok(());
                }
                let answer = client.post(&url).headers(headers.clone()).body(body(n)).send().await?;
                ensure!(answer.status().is_success(), "the service answered {}", answer.status());
                answer.bytes().await?;
            }
        });
    }
    while let Some(caller) = callers.join_next().await {
        caller??;
    }
    Ok(started.elapsed())
}

/// Headers as a task's are, in name and length.
fn sent_headers() -> anyhow::Result<HeaderMap> {
    let id = "5902958103587056517";
    let ours = [
        ("webhook-id", id),
        ("webhook-timestamp", "1763280000"),
        ("idempotency-key", id),
        ("redrive-attempt", "1"),
        ("redrive-fence", "5902958103587056517-1"),
    ];
    let mut headers = HeaderMap::new();
    for (name, value) in ours {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    for (name, value) in own_headers() {
        headers.insert(HeaderName::from_bytes(name.as_bytes())?, HeaderValue::from_str(&value)?);
    }
    Ok(headers)
}
