//! Limits the frames of HTTP/2 that a client sends without a request.
//!
//! A client can send SETTINGS, PING, RST_STREAM and empty frames without end, and each is handled or answered.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Most small frames before the first request, and for each request; a client sends fewer than ten.
const FRAMES: u64 = 1_000;
/// Bytes of DATA from which on a frame is part of a body, which has limits of its own.
const SMALL: usize = 1024;
/// The kind DATA (RFC 9113, section 6.1).
const DATA: u8 = 0;

/// Counts the frames in received bytes.
#[derive(Debug, Default)]
struct FrameCounter {
    head: [u8; 9],
    filled: usize,
    /// Bytes that remain of the payload.
    skip: usize,
    /// Whether the connection has begun; it is of HTTP/1 if not with the preface of HTTP/2.
    begun: bool,
    is_http1: bool,
    count: u64,
}

impl FrameCounter {
    /// Follows received bytes (RFC 9113, sections 3.4 and 4.1).
    fn receive(&mut self, mut bytes: &[u8]) {
        while !self.is_http1 && !bytes.is_empty() {
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len());
                self.skip -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            self.head[self.filled] = bytes[0];
            self.filled += 1;
            bytes = &bytes[1..];
            if !self.begun && self.filled == 3 {
                // No method of HTTP/1 begins so; 21 bytes of the preface follow.
                self.is_http1 = self.head[..3] != *b"PRI";
                (self.begun, self.skip, self.filled) = (true, 21, 0);
            } else if self.begun && self.filled == self.head.len() {
                let [high, middle, low, kind, ..] = self.head;
                self.skip = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
                self.filled = 0;
                self.count += u64::from(kind != DATA || self.skip < SMALL);
            }
        }
    }
}

/// A stream whose reads fail after too many frames for the number of requests.
#[derive(Debug)]
pub struct LimitedFrames<S, R, E> {
    stream: S,
    requests: R,
    /// Called when there are too many; absent afterwards.
    exceeded: Option<E>,
    frames: FrameCounter,
}

impl<S, R: Fn() -> u64, E: FnOnce()> LimitedFrames<S, R, E> {
    /// Limits a connection of HTTP/2 or HTTP/1, of which nothing was read yet; `requests` returns the number of its
    /// requests so far. `exceeded` is called once when there are too many frames.
    pub fn new(stream: S, requests: R, exceeded: E) -> Self {
        let exceeded = Some(exceeded);
        Self { stream, requests, exceeded, frames: FrameCounter::default() }
    }
}

impl<S: AsyncRead + Unpin, R: Fn() -> u64 + Unpin, E: FnOnce() + Unpin> AsyncRead for LimitedFrames<S, R, E> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.frames.receive(&buffer.filled()[before..]);
        if self.frames.count > FRAMES.saturating_mul(1 + (self.requests)()) {
            if let Some(exceeded) = self.exceeded.take() {
                exceeded();
            }
            return Poll::Ready(Err(io::Error::other("too many frames of HTTP/2 without a request")));
        }
        read
    }
}

impl<S: AsyncWrite + Unpin, R: Unpin, E: Unpin> AsyncWrite for LimitedFrames<S, R, E> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_frames_are_counted_however_they_arrive() {
        let frame = |kind: u8, length: u16| {
            let [high, low] = length.to_be_bytes();
            let mut frame = vec![0, high, low, kind, 0, 0, 0, 0, 0];
            frame.resize(9 + usize::from(length), 4);
            frame
        };
        // SETTINGS, PING, HEADERS, DATA, RST_STREAM, and DATA of a body.
        let frames =
            [frame(4, 6), frame(6, 8), frame(1, 20), frame(0, 0), frame(3, 4), frame(0, 2000)].concat();
        let bytes = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frames].concat();
        for length in [1, 2, 7, 64, bytes.len()] {
            let mut counted = FrameCounter::default();
            bytes.chunks(length).for_each(|part| counted.receive(part));
            assert_eq!((counted.count, counted.skip, counted.filled), (5, 0, 0), "{length}");
        }
        let mut counted = FrameCounter::default();
        counted.receive(b"POST /v1/metrics HTTP/1.1\r\n\r\n");
        counted.receive(&frames.repeat(100));
        assert_eq!(counted.count, 0);
    }
}
