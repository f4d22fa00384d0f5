//! A server for webhooks: keeps what it is sent and answers what it is told to.

use std::sync::{Arc, Mutex};

use redrive::notify::{Channel, Format, Webhook};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A request that came in.
#[derive(Clone, Debug)]
pub struct Request {
    pub path: String,
    pub head: String,
    pub body: String,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

pub struct Hook {
    port: u16,
    answer: Arc<Mutex<(&'static str, String)>>,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Hook {
    /// A server that answers so, such as `200 OK` and a body. Without a status it never answers.
    pub async fn answering(status: &'static str, body: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let hook = Self { port, answer: Arc::new(Mutex::new((status, body.to_owned()))), requests: Arc::default() };
        let (answer, requests) = (hook.answer.clone(), hook.requests.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let answer = answer.lock().unwrap().clone();
                tokio::spawn(serve(stream, answer, requests.clone()));
            }
        });
        hook
    }

    pub fn answer(&self, status: &'static str, body: &str) {
        *self.answer.lock().unwrap() = (status, body.to_owned());
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// A webhook to it, with a token in its address.
    pub fn webhook(&self, format: Format) -> Webhook {
        let url = format!("http://127.0.0.1:{}/send?access_token=S3cretT0KEN", self.port);
        Webhook { url: url.into(), format, ..Webhook::default() }
    }

    pub fn channel(&self, format: Format) -> Channel {
        Channel::Webhook(self.webhook(format))
    }
}

async fn serve(mut stream: TcpStream, (status, body): (&'static str, String), requests: Arc<Mutex<Vec<Request>>>) {
    let Some(request) = read(&mut stream).await else { return };
    requests.lock().unwrap().push(request);
    if status.is_empty() {
        return std::future::pending().await;
    }
    let answer = format!(
        "HTTP/1.1 {status}\r\nlocation: /elsewhere\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    _ = stream.write_all(answer.as_bytes()).await;
}

async fn read(stream: &mut TcpStream) -> Option<Request> {
    let mut bytes = Vec::new();
    loop {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let request = Request { path: head.split(' ').nth(1)?.into(), head: head.into(), body: body.into() };
        let length: usize = request.header("content-length")?.parse().ok()?;
        if body.len() >= length {
            return Some(request);
        }
    }
}
