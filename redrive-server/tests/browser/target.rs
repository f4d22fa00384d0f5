//! A service that is called.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A service that is down until it is mended.
pub struct Target {
    pub url: String,
    works: Arc<AtomicBool>,
}

impl Target {
    pub fn down() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let works = Arc::new(AtomicBool::new(false));
        let is_up = works.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, mut part) = (stream.unwrap(), [0; 4096]);
                _ = stream.read(&mut part).unwrap();
                let status = if is_up.load(Ordering::Acquire) { "200 OK" } else { "503 Service Unavailable" };
                _ = write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            }
        });
        Self { url, works }
    }

    pub fn mend(&self) {
        self.works.store(true, Ordering::Release);
    }
}
