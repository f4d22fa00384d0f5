//! A mail server of one's own, that can be down.

use std::process::Stdio;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use redrive::notify::{Channel, Encryption, Mail, NotifyConfig};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::TcpSocket;
use tokio::process::{Child, ChildStdout, Command};

pub struct Sink {
    pub port: u16,
    /// Bound, but nobody listens: whoever connects is refused, and no other test is given the port.
    _reserved: TcpSocket,
    dir: tempfile::TempDir,
    running: Option<(Child, Lines<BufReader<ChildStdout>>)>,
}

impl Sink {
    /// One that runs.
    pub async fn start() -> Self {
        let mut sink = Self::down();
        sink.up().await;
        sink
    }

    /// One that does not run yet.
    pub fn down() -> Self {
        let reserved = TcpSocket::new_v4().unwrap();
        reserved.set_reuseaddr(true).unwrap(); // the sink does so, too, and may then listen there
        reserved.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = reserved.local_addr().unwrap().port();
        Self { port, _reserved: reserved, dir: tempfile::tempdir().unwrap(), running: None }
    }

    pub async fn up(&mut self) {
        let mut child = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/smtp-sink"))
            .args(["--port", &self.port.to_string()])
            .arg(self.dir.path())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = said.next_line().await.unwrap();
        let first =
            first.expect("scripts/smtp-sink did not start; `scripts/db install --stores smtp` installs what it needs");
        assert!(first.starts_with("ready "), "{first}");
        self.running = Some((child, said));
    }

    pub async fn stop(&mut self) {
        if let Some((mut child, _)) = self.running.take() {
            child.kill().await.unwrap();
        }
    }

    /// Waits for the next mail that it takes.
    pub async fn next_mail(&mut self) -> String {
        let (_, said) = self.running.as_mut().expect("the sink is down");
        let line = said.next_line().await.unwrap().expect("the sink goes on");
        let file = line.strip_prefix("mail ").unwrap_or_else(|| panic!("{line}"));
        std::fs::read_to_string(self.dir.path().join(file)).unwrap()
    }

    /// All mails that it has, the oldest first.
    pub fn mails(&self) -> Vec<String> {
        mails_in(self.dir.path())
    }

    pub fn mail(&self) -> Mail {
        Mail {
            host: "127.0.0.1".into(),
            port: Some(self.port),
            encryption: Encryption::None,
            from: "Redrive <redrive@example.org>".into(),
            to: vec!["ops@example.org".into()],
            ..Mail::default()
        }
    }

    /// It as the only channel, called `ops`.
    pub fn config(&self) -> NotifyConfig {
        let channels = [("ops".to_owned(), Channel::Mail(self.mail()))].into();
        NotifyConfig { channels, ..NotifyConfig::default() }
    }
}

pub fn mails_in(dir: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries.filter(|path| path.extension().is_some_and(|e| e == "eml")).collect();
    files.sort();
    files.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

/// A mail's header, unfolded.
pub fn header(mail: &str, name: &str) -> Option<String> {
    let (head, _) = mail.split_once("\r\n\r\n").unwrap();
    let head = head.replace("\r\n ", " ");
    head.lines().find_map(|line| line.strip_prefix(&format!("{name}: "))).map(str::to_owned)
}

/// A mail's text, decoded.
pub fn text(mail: &str) -> String {
    let (_, body) = mail.split_once("\r\n\r\n").unwrap();
    match header(mail, "Content-Transfer-Encoding").as_deref() {
        Some("quoted-printable") => quoted_printable(body),
        Some("base64") => String::from_utf8(BASE64_STANDARD.decode(body.replace("\r\n", "")).unwrap()).unwrap(),
        _ => body.to_owned(),
    }
}

fn quoted_printable(body: &str) -> String {
    let body = body.replace("=\r\n", "");
    let mut parts = body.split('=');
    let mut bytes = parts.next().unwrap().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).unwrap()
}
