//! The services that the demo calls: a shop that answers as its script says, and a warehouse that goes down and comes back.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How a service answers one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// With this status and text.
    Says(u16, &'static str),
    /// Too many requests: again after so many seconds.
    After(u64),
    /// Not at all.
    Hangs,
}

/// One answer after the other; the last one is given from then on.
type Script = &'static [Answer];

/// Answers requests to `/orders/NAME` by their scripts.
#[derive(Clone, Debug, Default)]
pub(super) struct Shop(Arc<Mutex<HashMap<String, (Script, usize)>>>);

/// What a service says when all is well.
const FINE: Answer = Answer::Says(200, r#"{"state": "paid"}"#);

impl Shop {
    /// Answers from now on; its address.
    pub(super) async fn open(scripts: impl Iterator<Item = (&'static str, Script)>) -> Result<(Self, SocketAddr)> {
        let scripts = scripts.map(|(name, script)| (name.to_owned(), (script, 0))).collect();
        let shop = Self(Arc::new(Mutex::new(scripts)));
        let listener = TcpListener::bind("127.0.0.1:0").await.context("opening the shop")?;
        let address = listener.local_addr()?;
        let router = Router::new().route("/orders/{name}", post(order)).with_state(shop.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok((shop, address))
    }

    /// From now on orders of this name are taken.
    pub(super) fn mend(&self, name: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// The next answer to an order of this name.
    fn next(&self, name: &str) -> Answer {
        let mut scripts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((script, calls)) = scripts.get_mut(name) else { return FINE };
        *calls += 1;
        script.get(*calls - 1).or(script.last()).copied().unwrap_or(FINE)
    }
}

async fn order(State(shop): State<Shop>, Path(name): Path<String>) -> Response {
    match shop.next(&name) {
        Answer::Says(status, text) => {
            (StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), text).into_response()
        }
        Answer::After(seconds) => {
            let after: [(HeaderName, HeaderValue); 1] = [(header::RETRY_AFTER, seconds.into())];
            (StatusCode::TOO_MANY_REQUESTS, after, "too many orders").into_response()
        }
        Answer::Hangs => std::future::pending().await,
    }
}

/// A service that takes everything while it is up; while it is down nobody listens at its address.
#[derive(Debug)]
pub(super) struct Warehouse {
    /// Has the address and does not listen, so that nobody else gets it meanwhile.
    door: TcpSocket,
    up: Option<(CancellationToken, JoinHandle<()>)>,
}

/// How long it takes connections to end.
const CLOSING: Duration = Duration::from_secs(2);

impl Warehouse {
    /// One that is up.
    pub(super) fn open() -> Result<Self> {
        let mut warehouse = Self { door: bound(([127, 0, 0, 1], 0).into())?, up: None };
        warehouse.up()?;
        Ok(warehouse)
    }

    pub(super) fn address(&self) -> Result<SocketAddr> {
        Ok(self.door.local_addr()?)
    }

    pub(super) fn is_up(&self) -> bool {
        self.up.is_some()
    }

    /// Comes up.
    pub(super) fn up(&mut self) -> Result<()> {
        let listener = bound(self.address()?)?.listen(100).context("opening the warehouse")?;
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let router = Router::new().fallback(async || "stored");
        let serving = tokio::spawn(async move {
            _ = axum::serve(listener, router).with_graceful_shutdown(stopped).await;
        });
        self.up = Some((stop, serving));
        Ok(())
    }

    /// Goes down. When this returns, connections are refused.
    pub(super) async fn down(&mut self) {
        if let Some((stop, mut serving)) = self.up.take() {
            stop.cancel();
            if tokio::time::timeout(CLOSING, &mut serving).await.is_err() {
                serving.abort();
            }
        }
    }
}

/// A socket at an address that others of ours may have, too, as long as one of them listens.
fn bound(address: SocketAddr) -> Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address).with_context(|| format!("taking {address}"))?;
    Ok(socket)
}
