//! The layers, and the contracts of tower.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures_util::future::{BoxFuture, FutureExt};
use redrive::Policy;
use redrive::resilience::{
    BreakerLayer, HttpAnswer, LastGood, LastGoodLayer, Retry, RetryBudget, RetryLayer, Served, State, Trip,
};
use tower::limit::ConcurrencyLimitLayer;
use tower::timeout::TimeoutLayer;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};

use super::*;

#[tokio::test]
async fn a_rejection_is_an_error_of_call_and_never_of_poll_ready() {
    let (breaker, _) = breaker(|b| b.trip(Trip::Consecutive(1)));
    let mut service = BreakerLayer::new(breaker.clone())
        .layer(service_fn(async |ok: bool| if ok { Ok("fine") } else { Err(std::fmt::Error) }));
    assert_eq!(service.ready().await.unwrap().call(true).await.unwrap(), "fine");
    let failed = service.ready().await.unwrap().call(false).await.unwrap_err();
    assert!(failed.is::<std::fmt::Error>(), "its own error, as it is");
    for _ in 0..3 {
        let ready = service.ready().await.expect("ready, although it is open");
        assert!(ready.call(true).await.unwrap_err().is::<Rejected>());
    }
}

#[tokio::test]
async fn all_services_of_a_breaker_share_it_however_often_the_layer_is_applied() {
    let (breaker, _) = breaker(|b| b.trip(Trip::Consecutive(2)));
    let layer = BreakerLayer::new(breaker.clone());
    let fails = service_fn(async |()| Err::<(), _>(std::fmt::Error));
    let (mut one, mut other) = (layer.layer(fails), layer.clone().layer(fails));
    _ = one.ready().await.unwrap().call(()).await;
    _ = other.ready().await.unwrap().call(()).await;
    assert_eq!(breaker.state(), State::Open);
    assert!(one.clone().oneshot(()).await.unwrap_err().is::<Rejected>());
}

#[tokio::test]
async fn a_permit_is_taken_in_call_and_given_back_with_a_dropped_future() {
    let (breaker, clock) = breaker(|b| b.trip(Trip::Consecutive(1)).probes(1, 1));
    fail(&breaker, 1);
    clock.advance(secs(5));
    let never = service_fn(|()| std::future::pending::<Result<(), Infallible>>());
    let mut service = BreakerLayer::new(breaker.clone()).layer(never);
    service.ready().await.unwrap();
    assert_eq!(breaker.snapshot().probes.out, 0, "being ready takes none");
    let mut call = Box::pin(service.call(()));
    assert!((&mut call).now_or_never().is_none());
    assert_eq!(breaker.snapshot().probes.out, 1);
    drop(call);
    assert_eq!((breaker.state(), breaker.snapshot().probes.out), (State::HalfOpen, 0));
}

/// A place under a limit that a ready service holds is free again when the breaker rejects.
#[tokio::test]
async fn what_a_ready_service_holds_is_free_again_after_a_rejection() {
    let (breaker, _) = breaker(|b| b);
    let service = ServiceBuilder::new()
        .layer(BreakerLayer::new(breaker.clone()))
        .layer(ConcurrencyLimitLayer::new(1))
        .service(service_fn(async |()| Ok::<_, Infallible>(())));
    let (mut one, mut other) = (service.clone(), service);
    breaker.force_open();
    assert!(one.ready().await.unwrap().call(()).await.is_err());
    let free = other.ready().now_or_never();
    assert!(free.is_some(), "the first one still holds the only place");
}

/// A service that must be asked whether it is ready before each call, as tower says.
#[derive(Debug)]
struct Strict {
    is_ready: bool,
    calls: Arc<AtomicU32>,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self { is_ready: false, calls: self.calls.clone() } // readiness is not copied
    }
}

impl Service<u32> for Strict {
    type Response = u32;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<u32, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, succeed_at: u32) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "called without being ready");
        let n = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        async move { if n >= succeed_at { Ok(n) } else { Err("not yet".into()) } }.boxed()
    }
}

fn quick(attempts: u32) -> Policy {
    Policy { backoff: Backoff::fixed(ms(1)), jitter: Jitter::None, max_attempts: Some(attempts), ..Policy::default() }
}

#[tokio::test]
async fn the_service_that_is_called_is_the_one_that_was_ready() {
    let (breaker, clock) = breaker(|b| b.trip(Trip::Consecutive(100)));
    let calls = Arc::new(AtomicU32::new(0));
    let mut service = ServiceBuilder::new()
        .layer(LastGoodLayer::new(LastGood::new().clock(clock), |n: &u32| Some(*n)))
        .layer(RetryLayer::new(Retry::new(quick(5)).unwrap()).unwrap())
        .layer(BreakerLayer::new(breaker.clone()))
        .service(Strict { is_ready: false, calls: calls.clone() });
    assert_eq!(service.ready().await.unwrap().call(3).await.unwrap(), Served::Fresh(3));
    breaker.force_open();
    let served = service.ready().await.unwrap().call(3).await.unwrap();
    assert!(served.is_stale());
    assert_eq!((served.into_inner(), calls.load(Ordering::SeqCst)), (3, 3));
    let unknown = service.ready().await.unwrap().call(4).await.unwrap_err();
    assert!(redrive::resilience::rejection(&*unknown).is_some(), "{unknown}");
}

#[tokio::test]
async fn a_retry_gives_what_the_last_attempt_gave() {
    let statuses = Arc::new(AtomicUsize::new(0));
    let answers = statuses.clone();
    let service = service_fn(move |()| {
        let n = answers.fetch_add(1, Ordering::SeqCst);
        async move { Ok::<u16, Infallible>([503, 503, 200, 404][n % 4]) }
    });
    let judge = |ended: &Result<u16, Infallible>| HttpAnswer::new(*ended.as_ref().unwrap()).failure();
    let layer = |attempts| RetryLayer::new(Retry::new(quick(attempts)).unwrap()).unwrap().judged_by(judge);
    assert_eq!(layer(5).layer(service.clone()).oneshot(()).await, Ok(200));
    assert_eq!(layer(5).layer(service.clone()).oneshot(()).await, Ok(404), "not worth a retry");
    assert_eq!(layer(2).layer(service).oneshot(()).await, Ok(503), "given up");
    assert_eq!(statuses.load(Ordering::SeqCst), 6);
    let with_limit = Retry::new(Policy { timeout: Some(secs(1)), ..quick(2) }).unwrap();
    assert!(RetryLayer::new(with_limit).unwrap_err().to_string().contains("timeout: is for tower's own layer"));
}

/// The order that the guide recommends: it must at least be a type, and do what it says.
#[tokio::test]
async fn everything_together() {
    let (breaker, _) = breaker(|b| b.trip(Trip::Consecutive(4)));
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let retry = Retry::new(quick(3)).unwrap().budget(RetryBudget::default());
    let mut service = ServiceBuilder::new()
        .layer(LastGoodLayer::new(LastGood::new(), |(): &()| Some(())))
        .layer(TimeoutLayer::new(secs(60)))
        .layer(RetryLayer::new(retry).unwrap())
        .layer(ConcurrencyLimitLayer::new(10))
        .layer(BreakerLayer::new(breaker.clone()))
        .layer(TimeoutLayer::new(secs(1)))
        .service(service_fn(move |()| {
            let n = counted.fetch_add(1, Ordering::SeqCst);
            async move { if n == 0 { Ok("good") } else { Err(BoxError::from("down")) } }
        }));
    assert_eq!(service.ready().await.unwrap().call(()).await.unwrap(), Served::Fresh("good"));
    assert_eq!(service.ready().await.unwrap().call(()).await.unwrap_err().to_string(), "down"); // three attempts
    let opened = service.ready().await.unwrap().call(()).await.unwrap(); // one more, then it is open
    assert!(opened.is_stale());
    assert_eq!((calls.load(Ordering::SeqCst), breaker.state()), (5, State::Open));
}
