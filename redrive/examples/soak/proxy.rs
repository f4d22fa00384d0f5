//! The wire between a node and its database: a TCP proxy that can cut all connections, refuse new ones, and hold bytes back
//! for a while and deliver them then. The last is what brings a write to the server long after its sender was declared dead.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What the wire does now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wire {
    /// Bytes towards the server are held back.
    pub hold_requests: bool,
    /// Bytes towards the client are held back.
    pub hold_answers: bool,
    /// New connections are closed at once.
    pub refuse: bool,
    /// How often all connections were cut.
    cuts: u64,
}

#[derive(Debug)]
pub struct Proxy {
    pub port: u16,
    wire: watch::Sender<Wire>,
}

impl Proxy {
    /// A proxy on a port of its own.
    pub async fn start(server: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let (wire, seen) = watch::channel(Wire::default());
        tokio::spawn(accept(listener, server, seen));
        Ok(Self { port, wire })
    }

    /// Cuts every connection and refuses new ones.
    pub fn cut(&self) {
        self.wire.send_modify(|wire| *wire = Wire { refuse: true, cuts: wire.cuts + 1, ..*wire });
    }

    pub fn hold(&self, requests: bool, answers: bool) {
        self.wire.send_modify(|wire| (wire.hold_requests, wire.hold_answers) = (requests, answers));
    }

    /// New connections are taken again.
    pub fn reopen(&self) {
        self.wire.send_modify(|wire| wire.refuse = false);
    }

    /// All is well again; what was held is delivered.
    pub fn mend(&self) {
        self.wire.send_modify(|wire| *wire = Wire { cuts: wire.cuts, ..Wire::default() });
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, wire: watch::Receiver<Wire>) {
    loop {
        // An error here is about one connection, which its client will notice.
        if let Ok((client, _)) = listener.accept().await
            && !wire.borrow().refuse
        {
            tokio::spawn(carry(client, server, wire.clone()));
        }
    }
}

/// One connection, until both sides have ended or it is cut.
async fn carry(client: TcpStream, server: SocketAddr, wire: watch::Receiver<Wire>) {
    let Ok(server) = TcpStream::connect(server).await else { return };
    _ = client.set_nodelay(true);
    _ = server.set_nodelay(true);
    let cuts = wire.borrow().cuts;
    let mut cut = wire.clone();
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let requests = pump(&mut from_client, &mut to_server, wire.clone(), |wire| wire.hold_requests);
    let answers = pump(&mut from_server, &mut to_client, wire, |wire| wire.hold_answers);
    // Each direction ends by itself: what a killed client has sent is still delivered.
    tokio::select! {
        biased; // once it is cut, nothing that was held gets through
        _ = cut.wait_for(|wire| wire.cuts != cuts) => {}
        _ = async { tokio::join!(requests, answers) } => {}
    }
}

async fn pump(
    from: &mut (impl tokio::io::AsyncRead + Unpin),
    to: &mut (impl tokio::io::AsyncWrite + Unpin),
    mut wire: watch::Receiver<Wire>,
    held: fn(&Wire) -> bool,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(n) = from.read(&mut buffer).await {
        if wire.wait_for(|wire| !held(wire)).await.is_err() || n == 0 || to.write_all(&buffer[..n]).await.is_err() {
            break;
        }
    }
    _ = to.shutdown().await;
}
