//! A web service that asks another one, through the layers: what it does while that one is down.
//!
//! ```sh
//! cargo run --example axum_client            # then: curl localhost:8080/rates/EUR
//! cargo run --example axum_client -- --once  # asks itself, while the exchange goes down and up again, and ends
//! ```

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use redrive::resilience::{
    BreakerLayer, CircuitBreaker, Health, HttpAnswer, LastGood, LastGoodLayer, Retry, RetryBudget, RetryLayer, Served,
    Trip, Window, rejection,
};
use redrive::{Backoff, Failure, Jitter, Kind, Policy};
use tower::limit::ConcurrencyLimitLayer;
use tower::timeout::TimeoutLayer;
use tower::timeout::error::Elapsed;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceBuilder, ServiceExt, service_fn};

/// A question and its answer, through all layers.
type Rates = BoxCloneSyncService<String, Served<f64>, BoxError>;

#[derive(Debug, thiserror::Error)]
enum RateError {
    #[error("the exchange answered {}", .0.status)]
    Answered(HttpAnswer),
    #[error(transparent)]
    Unreachable(#[from] reqwest::Error),
}

/// Asks the exchange, once.
async fn ask(client: reqwest::Client, url: String) -> Result<f64, RateError> {
    let answer = client.get(url).send().await?;
    match answer.status().as_u16() {
        200..=299 => Ok(answer.json().await?),
        status => Err(RateError::Answered(HttpAnswer::new(status))),
    }
}

/// What an end means for a retry.
fn failure(ended: &Result<f64, BoxError>) -> Option<Failure> {
    let error = ended.as_ref().err()?;
    if rejection(&**error).is_some() {
        return Some(Failure::reject("circuit_open", error.to_string())); // it would only be rejected again
    }
    Some(match error.downcast_ref() {
        Some(RateError::Answered(answer)) => return answer.failure(),
        Some(RateError::Unreachable(e)) => Failure::retry(Kind::CONNECT, e.to_string()),
        None if error.is::<Elapsed>() => Failure::retry(Kind::TIMEOUT, error.to_string()),
        None => Failure::retry(Kind::ERROR, error.to_string()),
    })
}

/// And for the breaker: only what looks like an outage counts.
fn health(ended: &Result<f64, BoxError>) -> Health {
    failure(ended).map_or(Health::Success, |failure| Health::of_failure(&failure.kind))
}

/// The layers, the outermost first.
fn rates(exchange: SocketAddr, breaker: CircuitBreaker) -> anyhow::Result<Rates> {
    let client = reqwest::Client::builder().build()?;
    let call = service_fn(move |currency: String| ask(client.clone(), format!("http://{exchange}/{currency}")));
    let quick = Policy {
        max_attempts: Some(3),
        backoff: Backoff::exponential(Duration::from_millis(5), 2.0, Duration::from_millis(50)),
        jitter: Jitter::Full,
        ..Policy::default()
    };
    let retry = RetryLayer::new(Retry::new(quick)?.budget(RetryBudget::default()))?.judged_by(failure);
    let per_second = governor::Quota::per_second(NonZeroU32::new(100).expect("not zero"));
    let limiter = Arc::new(governor::RateLimiter::direct(per_second));
    let service = ServiceBuilder::new()
        .layer(LastGoodLayer::new(LastGood::new(), |currency: &String| Some(currency.clone())))
        .layer(TimeoutLayer::new(Duration::from_secs(5))) // for everything
        .layer(retry)
        .filter_async(move |currency: String| {
            let limiter = limiter.clone();
            async move {
                limiter.until_ready().await;
                Ok::<_, BoxError>(currency)
            }
        })
        .layer(ConcurrencyLimitLayer::new(50))
        .layer(BreakerLayer::new(breaker).judged_by(health))
        .layer(TimeoutLayer::new(Duration::from_secs(1))) // for one attempt
        .service(call);
    Ok(BoxCloneSyncService::new(service))
}

/// The app's own answer: the rate and how old it is, or 503 if there is none.
async fn rate(State(rates): State<Rates>, Path(currency): Path<String>) -> (StatusCode, String) {
    match rates.oneshot(currency.clone()).await {
        Ok(Served::Fresh(rate)) => (StatusCode::OK, format!("{rate} {currency}, fresh")),
        Ok(Served::Stale { value, age }) => (StatusCode::OK, format!("{value} {currency}, stale for {age:?}")),
        Err(e) => (StatusCode::SERVICE_UNAVAILABLE, e.to_string()),
    }
}

/// An exchange that can be down.
fn exchange(up: Arc<AtomicBool>) -> Router {
    let answer = |State(up): State<Arc<AtomicBool>>| async move {
        if up.load(Ordering::SeqCst) { Ok(Json(1.0842)) } else { Err(StatusCode::SERVICE_UNAVAILABLE) }
    };
    Router::new().route("/{currency}", get(answer)).with_state(up)
}

async fn serve(address: &str, router: Router) -> anyhow::Result<SocketAddr> {
    let listener = tokio::net::TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(address)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let once = std::env::args().any(|argument| argument == "--once");
    _ = rustls::crypto::ring::default_provider().install_default();
    let up = Arc::new(AtomicBool::new(true));
    let exchange = serve("127.0.0.1:0", exchange(up.clone())).await?;
    let breaker = CircuitBreaker::builder("exchange")
        .trip(Trip::failure_rate(0.5, Window::default(), 20))
        .trip(Trip::Consecutive(5))
        .open_wait(Backoff::fixed(Duration::from_millis(if once { 50 } else { 5_000 })), Jitter::Proportional(0.2))
        .probes(1, 1)
        .build()?;
    let router = Router::new().route("/rates/{currency}", get(rate)).with_state(rates(exchange, breaker.clone())?);
    let app = serve(if once { "127.0.0.1:0" } else { "127.0.0.1:8080" }, router).await?;
    println!("listening on {app}");
    if !once {
        return Ok(tokio::signal::ctrl_c().await?);
    }
    down_and_up(app, &up).await?;
    println!("{}", breaker.snapshot());
    Ok(())
}

/// Asks until the answer is what it must become.
async fn down_and_up(app: SocketAddr, up: &AtomicBool) -> anyhow::Result<()> {
    let get = async || anyhow::Ok(reqwest::get(format!("http://{app}/rates/EUR")).await?.text().await?);
    println!("{}", get().await?);
    up.store(false, Ordering::SeqCst);
    println!("the exchange is down");
    let until = async |word: &str| loop {
        let answer = get().await?;
        if answer.contains(word) {
            return anyhow::Ok(answer);
        }
        if !answer.contains("stale") {
            println!("{answer}");
        }
    };
    println!("{}", until("stale").await?);
    up.store(true, Ordering::SeqCst);
    println!("the exchange is up");
    println!("{}", until("fresh").await?);
    Ok(())
}
