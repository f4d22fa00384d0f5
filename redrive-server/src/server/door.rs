//! The door: connections are let in here, and requests handed to the router.
//!
//! *State.* A place for each connection. Without a free one nobody is let in; they wait in the queue of the operating system.
//!
//! *Invariants.* However many come, files stay for the database and for deliveries: connections take at most half of those that the
//! process may open. Whoever brings no whole request in time, be it by one byte a second or by silence, loses its place, and so does
//! whoever reads nothing of its answer for as long ([`Impatient`]). One connection cannot end the server, nor keep it from ending.
//!
//! *Failure.* What fails when a connection is taken from the queue is of that connection, or there are no files left: the next is
//! taken a moment later. At the end connections without a request are closed, and what is under way is answered, for as long as
//! an answer may take; then it is given up.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::connect_info::IntoMakeServiceWithConnectInfo;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use redrive::ServerSettings;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower::Service as _;

use super::impatient::Impatient;

type Services = IntoMakeServiceWithConnectInfo<Router, SocketAddr>;

/// What is kept of what a connection sends: so long may the head of a request be. Anybody can fill it, on every connection; hyper may
/// grow it to twice as much.
const BUFFER: usize = 64 * 1024;
/// As many may wait in the queue of the operating system, if it allows so many.
const QUEUE: u32 = 4_096;

/// Takes an address. It may be one that a server has just left.
pub(super) fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(QUEUE)
}

/// Lets connections in until `stopped`, then ends what is under way, or gives it up.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: &ServerSettings,
    stopped: impl Future<Output = ()> + Send,
) {
    let mut services = router.into_make_service_with_connect_info::<SocketAddr>();
    let places = Arc::new(Semaphore::new(places(limits.max_connections)));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.idle_timeout).max_buf_size(BUFFER);
    let (under_way, given_up) = (GracefulShutdown::new(), CancellationToken::new());
    let mut stopped = std::pin::pin!(stopped);
    loop {
        let next = async {
            // A place first: who is let in without one would take a file.
            let place = Arc::clone(&places).acquire_owned().await.ok();
            (place, accepted(&listener).await)
        };
        let (place, (stream, from)) = tokio::select! {
            biased;
            () = &mut stopped => break,
            next = next => next,
        };
        let service = service(&mut services, from).await;
        let stream = TokioIo::new(Impatient::new(stream, limits.idle_timeout));
        let connection = under_way.watch(http.serve_connection(stream, TowerToHyperService::new(service)));
        let given_up = given_up.clone();
        tokio::spawn(async move {
            // An error is of the other side: it went away, was too slow, or spoke no HTTP.
            _ = given_up.run_until_cancelled(connection).await;
            drop(place);
        });
    }
    drop(listener);
    if tokio::time::timeout(limits.request_timeout, under_way.shutdown()).await.is_err() {
        tracing::warn!("some requests are not answered to their end: the server stops");
    }
    given_up.cancel();
}

/// The next connection.
#[expect(clippy::disallowed_methods, reason = "a shell around one call")]
async fn accepted(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                _ = stream.set_nodelay(true);
                return (stream, from);
            }
            Err(e) => {
                tracing::warn!(error = %e, "a connection was not let in");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn service(
    services: &mut Services,
    from: SocketAddr,
) -> axum::middleware::AddExtension<Router, axum::extract::ConnectInfo<SocketAddr>> {
    let made: Result<_, Infallible> = services.call(from).await;
    match made {
        Ok(service) => service,
        Err(never) => match never {},
    }
}

/// As many as asked for, but not so many that no files are left for the rest.
fn places(wanted: usize) -> usize {
    let files = open_files();
    let most = files.map_or(wanted, |files| wanted.min(files / 2));
    if most < wanted {
        tracing::warn!(
            most,
            wanted,
            "fewer connections than server.max_connections: half of the files that the process may open (ulimit -n)"
        );
    }
    most.max(1)
}

/// How many files the process may open, after the limit was raised as far as it can be. None: no limit.
#[cfg(unix)]
fn open_files() -> Option<usize> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let holds = if raised.is_ok() { maximum } else { current };
    holds.map(|files| usize::try_from(files).unwrap_or(usize::MAX))
}

#[cfg(not(unix))]
fn open_files() -> Option<usize> {
    None
}
