//! Connections that mean no good: many, slow, silent, or not of HTTP at all. The others are answered.

#[allow(dead_code, reason = "shared by several tests")]
mod support;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;
use support::Server;

/// Longer than anything here takes, shorter than forever.
const PATIENCE: Duration = Duration::from_secs(60);

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// All that the server still says until it closes the connection.
fn until_closed(mut stream: TcpStream) -> String {
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Ok(_) => {}
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(e) => panic!("it was not closed: {e}"),
    }
    String::from_utf8_lossy(&said).into_owned()
}

fn is_well(server: &Server) {
    assert_eq!(server.api("GET", "/overview", &Value::Null).status, 200);
}

#[test]
fn whoever_brings_no_whole_request_loses_its_place() {
    let server = Server::start("[server]\nidle_timeout = \"500ms\"\nmax_connections = 3");
    let (silent, mut half, mut slow) = (connect(&server), connect(&server), connect(&server));
    half.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-never-ends: ").unwrap();
    let endless = slow.try_clone().unwrap();
    let trickling = std::thread::spawn(move || while slow.write_all(b"G").is_ok() {});
    is_well(&server); // all places were taken, so this one waited for one of them
    assert_eq!(until_closed(silent), "");
    until_closed(half);
    until_closed(endless);
    trickling.join().unwrap();
    is_well(&server);
}

#[test]
fn between_two_requests_a_connection_is_kept() {
    let server = Server::start("");
    let mut stream = connect(&server);
    for _ in 0..3 {
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        let mut answer = [0; 15];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200 OK");
        let mut rest = [0; 4_096];
        _ = stream.read(&mut rest).unwrap();
    }
}

#[test]
fn ten_thousand_connections_hold_up_nobody() {
    let server = Server::start("[server]\nidle_timeout = \"1s\"\nmax_connections = 1000");
    let address = server.address.parse().unwrap();
    let mut held = Vec::new();
    while held.len() < 10_000 {
        match TcpStream::connect_timeout(&address, Duration::from_secs(3)) {
            Ok(stream) => held.push(stream),
            Err(_) => break, // the places and the queue are full, or this process may open no more files
        }
    }
    assert!(held.len() >= 1_000, "only {} connections", held.len());
    is_well(&server);
    drop(held);
    is_well(&server);
}

#[test]
fn what_is_no_http_is_refused_and_harms_nobody() {
    let server = Server::start("");
    let long = "x".repeat(1 << 20);
    let cases = [
        "EHLO mail.example.org\r\n\r\n".to_owned(),
        "\u{0}\u{1}\u{2}\r\n\r\n".to_owned(),
        "GET / HTTP/9.9\r\n\r\n".to_owned(),
        format!("GET /{long} HTTP/1.1\r\nhost: x\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nhost: x\r\n{}\r\n", "a: b\r\n".repeat(1_000)),
        format!("GET / HTTP/1.1\r\nhost: x\r\nlong: {long}\r\n\r\n"),
        "POST /api/v1/tasks HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\ncontent-length: 20\r\n\r\n".to_owned(),
        "POST /api/v1/tasks HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n".to_owned(),
        "POST /api/v1/tasks HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n".to_owned(),
    ];
    for case in cases {
        let mut stream = connect(&server);
        _ = stream.write_all(case.as_bytes()); // it may be refused before all of it is there
        _ = stream.shutdown(std::net::Shutdown::Write);
        let said = until_closed(stream);
        let shown: String = case.chars().take(60).collect();
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 4"), "{shown:?}: {said}");
        is_well(&server);
    }
}

/// Texts that programs have stumbled over.
fn hostile() -> Vec<String> {
    let mut all: Vec<String> = [
        "%00",
        "%ff%fe",
        "-1",
        "0",
        "9223372036854775807",
        "9223372036854775808",
        "1e309",
        "NaN",
        "null",
        "[]",
        "{}",
        "%27%22--",
        "%3Cscript%3E",
        "..%2F..%2Fetc%2Fpasswd",
        "%F0%9F%92%A3",
        "%E2%80%AE",
        "%25s%25n",
        "$%7B7*7%7D",
        "%C2%A0",
        "2026-02-30T99:99",
        "-99999999999h",
        "99999999999999999999days",
        "%0d%0ax-injected:1",
        "+",
        "%",
        "%zz",
        "*",
        "%25",
        "_",
    ]
    .map(str::to_owned)
    .into();
    all.push("a".repeat(5_000));
    all
}

#[test]
fn no_query_path_or_cookie_breaks_a_page() {
    let server = Server::start("");
    let visitor = server.log_in(&server.token);
    let pages = [
        "/",
        "/tasks",
        "/tasks/bulk",
        "/dead",
        "/dead/bulk",
        "/methods",
        "/sagas",
        "/guards",
        "/nodes",
        "/settings",
        "/audit",
        "/channels",
        "/login",
    ];
    let fields = "status method key business_type business_id kind error last from before due reason owned owner after action which \
                  id rate path value who what name table lang theme said n";
    let names: Vec<&str> = fields.split_whitespace().collect();
    for (i, text) in hostile().into_iter().enumerate() {
        let query = names.iter().map(|name| format!("{name}={text}")).collect::<Vec<_>>().join("&");
        for (j, page) in pages.into_iter().enumerate() {
            // A mistake in one field hides those in others: each has its turn alone.
            let alone = (0..4).map(|k| format!("{page}?{}={text}", names[(i + j * 4 + k) % names.len()]));
            for path in
                [format!("{page}?{query}"), format!("{}/{text}", page.trim_end_matches('/'))].into_iter().chain(alone)
            {
                let answer = server.get(&visitor, &path);
                assert!(answer.status < 500, "{path}: {} {}", answer.status, answer.body);
                assert!(answer.header("x-injected").is_empty(), "{path}: {}", answer.head);
            }
        }
    }
}
