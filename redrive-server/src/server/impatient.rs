//! A connection that does not wait for ever to be read.
//!
//! What is written goes into a buffer of the operating system, and is taken from there by the other side. If that reads nothing,
//! the buffer stays full and a write does not come to its end. Here one that has got nowhere for a while fails, and the
//! connection with it. Any progress, be it one byte, begins the time anew.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// A stream whose writes end, well or not.
pub(super) struct Impatient<S> {
    stream: S,
    limit: Duration,
    /// Until when the write that waits may wait.
    patience: Option<Pin<Box<Sleep>>>,
}

impl<S: Unpin> Impatient<S> {
    pub(super) const fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, patience: None }
    }

    /// What came of a write, or that it waits for too long.
    #[expect(clippy::disallowed_methods, reason = "a shell around the connection: its time is that of the network")]
    fn in_time<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.patience = None;
            return written;
        }
        let limit = self.limit;
        let patience = self.patience.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        ready!(patience.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.in_time(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        // A socket has nothing to flush: that this is ready says nothing of a write that waits.
        if flushed.is_ready() { flushed } else { self.in_time(cx, flushed) }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.in_time(cx, shut)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.in_time(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn a_write_that_nobody_reads_fails() {
        let (_far, near) = duplex(10);
        let mut near = Impatient::new(near, Duration::from_millis(1));
        near.write_all(&[7; 10]).await.unwrap();
        assert_eq!(near.write_all(&[7; 10]).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn whoever_reads_one_byte_is_waited_for_anew() {
        let (mut far, near) = duplex(10);
        let mut near = Impatient::new(near, Duration::from_secs(3_600));
        near.write_all(&[7; 10]).await.unwrap();
        let mut write = async || std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut near).poll_write(cx, &[7]))).await;
        assert!(write().await.is_pending());
        far.read_u8().await.unwrap();
        assert!(write().await.is_ready());
        assert!(near.patience.is_none());
    }
}
