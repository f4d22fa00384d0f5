//! Breaker, retry and last good value as tower layers.
//!
//! *State* is in the values that layers are made of, never in a layer: frameworks call `layer` whenever they like, and two
//! services behind one breaker are behind the same one.
//!
//! *Invariants.* A rejection is an error of `call`, never of `poll_ready`, where an error would mean that the service is gone for
//! good. What is called is the very service that said it was ready. When a call is rejected, the ready service behind is dropped and
//! replaced by a clone, so that whatever it holds for the call (a place under a limit) is free again.
//!
//! *Failure.* A call whose future is dropped decides nothing.

use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::future::{BoxFuture, poll_fn};
use pin_project_lite::pin_project;
use tower::{BoxError, Layer, Service};

use super::breaker::{CircuitBreaker, health_of};
use super::last_good::{LastGood, MaybeRejected, Served};
use super::machine::Health;
use super::permit::{OwnedPermit, Rejected};
use super::retry::Retry;
use crate::classify::{Failure, Kind};
use crate::clock::pause;
use crate::error::{Error, Result as RedriveResult};

/// Says what the end of a call means for a breaker. Any `Fn(&Result<T, E>) -> Health` does.
pub trait JudgeHealth<T, E> {
    /// What this end means.
    fn health(&self, ended: &Result<T, E>) -> Health;
}

/// Says what the end of a call means for a retry. Any `Fn(&Result<T, E>) -> Option<Failure>` does.
pub trait JudgeFailure<T, E> {
    /// The failure that it is, if it is one.
    fn failure(&self, ended: &Result<T, E>) -> Option<Failure>;
}

/// The judge by default: an error is a failure, and a rejection by a breaker is not worth a retry.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByResult;

impl<T, E> JudgeHealth<T, E> for ByResult {
    fn health(&self, ended: &Result<T, E>) -> Health {
        health_of(ended)
    }
}

impl<T, E, F: Fn(&Result<T, E>) -> Health> JudgeHealth<T, E> for F {
    fn health(&self, ended: &Result<T, E>) -> Health {
        self(ended)
    }
}

impl<T, E: MaybeRejected + std::fmt::Display> JudgeFailure<T, E> for ByResult {
    fn failure(&self, ended: &Result<T, E>) -> Option<Failure> {
        let error = ended.as_ref().err()?;
        Some(match error.rejected() {
            Some(rejected) => super::retry::rejected(rejected),
            None => Failure::retry(Kind::ERROR, error.to_string()),
        })
    }
}

impl<T, E, F: Fn(&Result<T, E>) -> Option<Failure>> JudgeFailure<T, E> for F {
    fn failure(&self, ended: &Result<T, E>) -> Option<Failure> {
        self(ended)
    }
}

/// Puts a [`CircuitBreaker`] before a service.
#[derive(Clone, Debug)]
pub struct BreakerLayer<J = ByResult> {
    breaker: CircuitBreaker,
    judge: J,
}

impl BreakerLayer {
    /// Errors are failures, everything else is a success.
    pub fn new(breaker: CircuitBreaker) -> Self {
        Self { breaker, judge: ByResult }
    }

    /// Judged by one's own. HTTP services need this: to them an answer of 503 is no error.
    pub fn judged_by<J>(self, judge: J) -> BreakerLayer<J> {
        BreakerLayer { breaker: self.breaker, judge }
    }
}

impl<S, J: Clone> Layer<S> for BreakerLayer<J> {
    type Service = BreakerService<S, J>;

    fn layer(&self, inner: S) -> Self::Service {
        BreakerService { inner, breaker: self.breaker.clone(), judge: self.judge.clone() }
    }
}

/// A service behind a [`CircuitBreaker`]. Its errors are boxed, as those of tower's own layers: the service's own as they are, or
/// a [`Rejected`], which [`rejection`](super::rejection) finds.
#[derive(Clone, Debug)]
pub struct BreakerService<S, J = ByResult> {
    inner: S,
    breaker: CircuitBreaker,
    judge: J,
}

impl<S, J, R> Service<R> for BreakerService<S, J>
where
    S: Service<R, Error: Into<BoxError>> + Clone,
    J: JudgeHealth<S::Response, S::Error> + Clone,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BreakerFuture<S::Future, J>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: R) -> Self::Future {
        match self.breaker.try_acquire_owned() {
            Ok(permit) => {
                let call = self.inner.call(request);
                BreakerFuture::Calling { call, permit: Some(permit), judge: self.judge.clone() }
            }
            Err(rejected) => {
                self.inner = self.inner.clone();
                BreakerFuture::Rejected { rejected: Some(rejected) }
            }
        }
    }
}

pin_project! {
    /// A call through a [`BreakerService`].
    #[project = Projected]
    #[derive(Debug)]
    #[expect(missing_docs, reason = "nobody makes one but the service")]
    pub enum BreakerFuture<F, J> {
        Rejected { rejected: Option<Rejected> },
        Calling { #[pin] call: F, permit: Option<OwnedPermit>, judge: J },
    }
}

impl<F, J, T, E> Future for BreakerFuture<F, J>
where
    F: Future<Output = Result<T, E>>,
    J: JudgeHealth<T, E>,
    E: Into<BoxError>,
{
    type Output = Result<T, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            Projected::Rejected { rejected } => match rejected.take() {
                Some(rejected) => Poll::Ready(Err(rejected.into())),
                None => Poll::Pending, // it has ended already
            },
            Projected::Calling { call, permit, judge } => {
                let ended = ready!(call.poll(cx));
                if let Some(permit) = permit.take() {
                    permit.ended(judge.health(&ended));
                }
                Poll::Ready(ended.map_err(Into::into))
            }
        }
    }
}

/// Tries a service again by a [`Retry`]. Requests are cloned. What the last attempt gave is what the caller gets.
#[derive(Clone, Debug)]
pub struct RetryLayer<J = ByResult> {
    retry: Retry,
    judge: J,
}

impl RetryLayer {
    /// Errors are failures, everything else is a success. A policy with a `timeout` is refused: put tower's timeout inside.
    pub fn new(retry: Retry) -> RedriveResult<Self> {
        if retry.has_timeout() {
            return Err(Error::invalid("timeout", "is for tower's own layer, inside of this one"));
        }
        Ok(Self { retry, judge: ByResult })
    }

    /// Judged by one's own. HTTP services need this: to them an answer of 503 is no error.
    pub fn judged_by<J>(self, judge: J) -> RetryLayer<J> {
        RetryLayer { retry: self.retry, judge }
    }
}

impl<S, J: Clone> Layer<S> for RetryLayer<J> {
    type Service = RetryService<S, J>;

    fn layer(&self, inner: S) -> Self::Service {
        RetryService { inner, retry: self.retry.clone(), judge: self.judge.clone() }
    }
}

/// A service that is tried again.
#[derive(Clone, Debug)]
pub struct RetryService<S, J = ByResult> {
    inner: S,
    retry: Retry,
    judge: J,
}

impl<S, J, R> Service<R> for RetryService<S, J>
where
    S: Service<R, Response: Send, Error: Send, Future: Send> + Clone + Send + 'static,
    J: JudgeFailure<S::Response, S::Error> + Clone + Send + Sync + 'static,
    R: Clone + Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let clone = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, clone);
        Box::pin(try_again(ready, request, self.retry.clone(), self.judge.clone()))
    }
}

/// `service` is ready.
async fn try_again<S, J, R>(mut service: S, request: R, retry: Retry, judge: J) -> Result<S::Response, S::Error>
where
    S: Service<R>,
    J: JudgeFailure<S::Response, S::Error>,
    R: Clone,
{
    let mut course = retry.begin();
    loop {
        let ended = service.call(request.clone()).await;
        let Some(failure) = judge.failure(&ended) else { return ended };
        let Ok(wait) = retry.next(&mut course, &failure) else { return ended };
        drop(ended);
        pause(wait).await;
        poll_fn(|cx| service.poll_ready(cx)).await?;
    }
}

/// Gives the last good answer of a service while its calls are rejected.
#[derive(Clone, Debug)]
pub struct LastGoodLayer<K, V, F> {
    last_good: LastGood<K, V>,
    key: F,
}

impl<K, V, F> LastGoodLayer<K, V, F> {
    /// `key` says under which key the answer to a request is kept; `None`: it is not.
    pub fn new(last_good: LastGood<K, V>, key: F) -> Self {
        Self { last_good, key }
    }
}

impl<S, K, V, F: Clone> Layer<S> for LastGoodLayer<K, V, F> {
    type Service = LastGoodService<S, K, V, F>;

    fn layer(&self, inner: S) -> Self::Service {
        LastGoodService { inner, last_good: self.last_good.clone(), key: self.key.clone() }
    }
}

/// A service that has a last good answer.
#[derive(Clone, Debug)]
pub struct LastGoodService<S, K, V, F> {
    inner: S,
    last_good: LastGood<K, V>,
    key: F,
}

impl<S, K, V, F, R> Service<R> for LastGoodService<S, K, V, F>
where
    S: Service<R, Response = V, Error: MaybeRejected, Future: Send + 'static>,
    K: Clone + Eq + Hash + Send + 'static,
    V: Clone + Send + 'static,
    F: Fn(&R) -> Option<K>,
{
    type Response = Served<V>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Served<V>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let (key, last_good) = ((self.key)(&request), self.last_good.clone());
        let call = self.inner.call(request);
        Box::pin(async move {
            match key {
                Some(key) => last_good.call(key, call).await,
                None => call.await.map(Served::Fresh),
            }
        })
    }
}
