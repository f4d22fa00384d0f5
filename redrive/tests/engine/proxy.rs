//! A proxy before a database, whose connections can be held up or cut.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The state of one direction of all connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    Open,
    /// Nothing gets through, and nothing is refused; it is delivered later.
    Held,
    /// Connections end.
    Cut,
}

pub struct Proxy {
    pub url: String,
    pub requests: watch::Sender<Wire>,
    pub answers: watch::Sender<Wire>,
    pub connections: watch::Receiver<u32>,
}

impl Proxy {
    pub async fn before(url: &str) -> Self {
        let (head, rest) = url.split_once('@').unwrap();
        let (host, path) = rest.split_once('/').unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("{head}@{}/{path}", listener.local_addr().unwrap());
        let (requests, requests_wire) = watch::channel(Wire::Open);
        let (answers, answers_wire) = watch::channel(Wire::Open);
        let (accepted, connections) = watch::channel(0);
        let host = host.to_owned();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                accepted.send_modify(|n| *n += 1);
                let server = TcpStream::connect(&host).await.unwrap();
                let ((cr, cw), (sr, sw)) = (client.into_split(), server.into_split());
                tokio::spawn(pass(cr, sw, requests_wire.clone()));
                tokio::spawn(pass(sr, cw, answers_wire.clone()));
            }
        });
        Self { url, requests, answers, connections }
    }

    pub fn set(&self, requests: Wire, answers: Wire) {
        self.requests.send(requests).unwrap();
        self.answers.send(answers).unwrap();
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut wire: watch::Receiver<Wire>,
) {
    let mut buffer = vec![0; 64 * 1024];
    let mut cut = wire.clone();
    loop {
        let n = tokio::select! {
            n = from.read(&mut buffer) => n.unwrap_or(0),
            _ = cut.wait_for(|wire| *wire == Wire::Cut) => 0,
        };
        let open = wire.wait_for(|wire| *wire != Wire::Held).await.is_ok_and(|wire| *wire == Wire::Open);
        if n == 0 || !open || to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}
