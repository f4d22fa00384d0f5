//! Real servers on this machine: one that keeps what it is sent and answers by path, and one that speaks bytes.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Notify;

/// A request that came in.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: Method,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub peer: SocketAddr,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

type Log = Arc<(Mutex<Vec<Seen>>, Notify)>;

/// Answers by path: `/status/503`, `/redirect/307?http://elsewhere/`, `/retry-after/120/429`, `/big/1000000`, `/hang`, `/echo`; and
/// `/then/503,200/x`, which gives one status after the other.
pub struct Service {
    pub port: u16,
    log: Log,
}

impl Service {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let log = Log::default();
        let app = axum::Router::new().fallback(answer).with_state(log.clone());
        tokio::spawn(async move {
            axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await.unwrap();
        });
        Self { port, log }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.log.0.lock().unwrap().clone()
    }

    /// Waits until it has been sent so many requests.
    pub async fn wait_for(&self, requests: usize) {
        while self.seen().len() < requests {
            self.log.1.notified().await; // one that came in between has left its permit
        }
    }
}

async fn answer(
    State(log): State<Log>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let (path, query) = (uri.path().to_owned(), uri.query().unwrap_or_default().to_owned());
    let secret = headers.get("authorization").map(|value| value.to_str().unwrap().to_owned());
    log.0.lock().unwrap().push(Seen { method, path: path.clone(), headers, body: body.clone(), peer });
    log.1.notify_one();
    let count = log.0.lock().unwrap().iter().filter(|seen| seen.path == path).count();
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let status = |text: &str| StatusCode::from_u16(text.parse().unwrap()).unwrap();
    match parts.as_slice() {
        ["status", code] => (status(code), format!("this is {code}")).into_response(),
        ["then", codes, ..] => {
            let codes: Vec<&str> = codes.split(',').collect();
            status(codes[(count - 1).min(codes.len() - 1)]).into_response()
        }
        ["redirect", code] => (status(code), [("location", query)]).into_response(),
        ["retry-after", value, code] => {
            let value = HeaderValue::from_str(&value.replace("%20", " ")).unwrap();
            (status(code), [("retry-after", value)]).into_response()
        }
        ["big", size] => vec![b'x'; size.parse().unwrap()].into_response(),
        ["json", code] => (status(code), [("x-state", "done")], r#"{"ok": true}"#).into_response(),
        ["tell"] => (StatusCode::FORBIDDEN, format!("your {} is wrong", secret.unwrap_or_default())).into_response(),
        ["tell-bytes"] => [b"\xff ", secret.unwrap_or_default().as_bytes()].concat().into_response(),
        ["hang"] => std::future::pending().await,
        ["loop"] => (StatusCode::TEMPORARY_REDIRECT, [("location", "/loop")]).into_response(),
        _ => body.into_response(),
    }
}

/// A server that, once a request has come, writes these bytes and then closes, or else never does anything again.
pub async fn bytes(answer: &'static [u8], close: bool) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            _ = stream.read(&mut [0; 4096]).await.unwrap();
            stream.write_all(answer).await.unwrap();
            if !close {
                open.push(stream);
            }
        }
    });
    port
}

/// A port at which nobody listens, and that no test is given when it asks for a free one.
pub const NOBODY: u16 = 1;
