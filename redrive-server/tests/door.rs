//! Connections that mean no good: many, slow, silent, or not of HTTP at all. The others are answered.

#[allow(dead_code, reason = "shared by several tests")]
mod support;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use redrive::store::Role;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _};
use support::visitor::Visitor;
use support::{PATIENCE, Server};

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

/// Byte by byte, without a pause: only that the whole has its time ends it.
#[test]
fn a_body_that_trickles_has_its_time_as_a_whole() {
    let server = Server::start("[server]\nidle_timeout = \"1h\"\nrequest_timeout = \"500ms\"\nmax_connections = 1");
    let mut slow = connect(&server);
    slow.set_nodelay(true).unwrap();
    let head = format!("POST /api/v1/tasks/bulk HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n", server.token);
    write!(slow, "{head}content-length: {}\r\n\r\n", 16 << 20).unwrap();
    let answer = slow.try_clone().unwrap();
    let trickling = std::thread::spawn(move || while slow.write_all(b"\n").is_ok() {});
    let said = until_closed(answer);
    assert!(said.starts_with("HTTP/1.1 408") && said.contains("slow_body"), "{said}");
    trickling.join().unwrap();
    is_well(&server); // there is one place
}

/// Asks for more than the buffers between two sockets hold, and reads nothing of it.
fn reads_nothing(server: &Server) -> TcpStream {
    let mut stream = connect(server);
    stream.write_all("GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n".repeat(1_000).as_bytes()).unwrap();
    stream
}

#[test]
fn whoever_reads_nothing_of_its_answer_loses_its_place() {
    let server = Server::start("[server]\nidle_timeout = \"500ms\"\nmax_connections = 1");
    let reader = reads_nothing(&server);
    is_well(&server); // there is one place, and the reader had it
    until_closed(reader);
}

#[test]
fn whoever_reads_nothing_does_not_hold_up_the_stop() {
    let server = Server::start("[server]\nidle_timeout = \"1h\"\nrequest_timeout = \"1s\"");
    let _reader = reads_nothing(&server);
    is_well(&server);
    server.stop();
}

/// A request of an admin on a connection of its own; what is answered until this text is there.
fn begin(server: &Server, token: &str, request: &str, body: &str, until: &str) -> (TcpStream, String) {
    let mut stream = connect(server);
    let head = format!("{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {token}\r\n");
    write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let (mut said, mut some) = (String::new(), [0; 4_096]);
    while !said.contains(until) {
        let n = stream.read(&mut some).unwrap();
        assert!(n > 0, "{said}");
        said += &String::from_utf8_lossy(&some[..n]);
    }
    (stream, said)
}

/// An admin who may do something to many tasks, of which there are some.
fn with_forms(server: &Server) -> Visitor {
    let admin = server.admin();
    let csrf = server.get(&admin, "/tasks/bulk?action=cancel&which=filter").csrf().to_owned();
    Visitor { csrf, ..admin }
}

#[test]
fn a_bulk_that_takes_its_time_does_not_hold_up_the_stop() {
    let server = Server::start("");
    let tasks: String = (0..600).map(|n| format!("{{\"method\": \"nobodys\", \"key\": \"{n}\"}}\n")).collect();
    assert_eq!(server.api_as(&server.token, "POST", "/api/v1/tasks/bulk", "", &tasks).status, 200);
    let bulk = json!({ "action": "cancel", "filter": {}, "per_second": 1 }).to_string();
    let (stream, said) = begin(&server, &server.token, "POST /api/v1/tasks/actions", &bulk, "\"running\"");
    assert!(said.contains("x-accel-buffering: no"), "{said}");
    let form = [("action", "cancel"), ("which", "filter"), ("rate", "1")];
    let admin = with_forms(&server);
    let page = std::thread::scope(|scope| {
        let page = scope.spawn(|| server.post(&admin, "/tasks/bulk", &form));
        while server.api("GET", "/audit", &Value::Null).body.matches("\"many\"").count() < 2 {} // both are under way
        server.stop();
        page.join().unwrap()
    });
    let rest = until_closed(stream);
    assert!(rest.contains("\"broken\"") && rest.contains("the same filter goes on"), "{rest}");
    assert!(page.status == 503 && page.has("the same filter goes on"), "{}", page.body);
}

/// Of a request that is half there when the stop begins.
#[test]
fn what_is_under_way_is_answered_before_the_engine_stops() {
    let server = Server::start("");
    let (_events, _) = begin(&server, &server.token, "GET /api/v1/events", "", "\r\n\r\n"); // it holds up nothing
    let (mut half, body) = (connect(&server), r#"{"method": "nobodys"}"#);
    let head = format!("POST /api/v1/tasks HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n", server.token);
    write!(half, "{head}expect: 100-continue\r\ncontent-length: {}\r\n\r\n", body.len()).unwrap();
    half.read_exact(&mut [0; 25]).unwrap(); // "go on": the handler waits for the body
    server.begin_to_stop();
    let is_alive = || server.cli_on_database(&["node", "ls", "--json"]).contains("\"state\":\"alive\"");
    assert!((0..20).all(|_| is_alive()), "the engine stops with a request under way");
    half.write_all(body.as_bytes()).unwrap();
    let answer = until_closed(half);
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    server.has_said("stopped");
    assert!(!is_alive());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_loses_its_token_hears_no_more_of_what_happens() {
    let server = Server::start("");
    let (viewer, id) = server.new_token("eve", Role::Viewer).await;
    let (mut stream, head) = begin(&server, &viewer, "GET /api/v1/events", "", "\r\n\r\n");
    assert!(head.contains(" 200 ") && head.contains("x-accel-buffering: no"), "{head}");
    assert_eq!(server.api("DELETE", &format!("/tokens/{id}"), &Value::Null).status, 204);
    let (mut said, mut some) = (String::new(), [0; 4_096]);
    while said.matches(":\n\n").count() < 2 {
        match stream.read(&mut some).unwrap() {
            0 => return,
            n => said += &String::from_utf8_lossy(&some[..n]),
        }
    }
    panic!("it is still told: {said}");
}

#[test]
fn who_follows_what_happens_leaves_connections_to_others() {
    let server = Server::start("[server]\nmax_connections = 20");
    let follow = || begin(&server, &server.token, "GET /api/v1/events", "", "\r\n\r\n");
    let mut open: Vec<_> = (0..5).map(|_| follow()).collect();
    assert!(open.iter().all(|(_, head)| head.starts_with("HTTP/1.1 200")));
    let (refused, head) = follow();
    assert!(head.starts_with("HTTP/1.1 429") && head.contains("retry-after: 60"), "{head}");
    assert!((head + &until_closed(refused)).contains("too_many_streams"));
    is_well(&server);
    drop(open.pop());
    while !follow().1.starts_with("HTTP/1.1 200") {} // it is noticed when something is to be sent, or at once
}

#[test]
fn a_form_that_anybody_can_send_is_small() {
    let server = Server::start("");
    let long = "x".repeat(20_000);
    for path in ["/login", "/preferences"] {
        assert_eq!(server.post(&Visitor::default(), path, &[("token", &long)]).status, 413, "{path}");
    }
    server.api("POST", "/tasks", &json!({ "method": "nobodys" }));
    let form = [("action", "cancel"), ("which", "filter"), ("note", &*long)];
    let answer = server.post(&with_forms(&server), "/tasks/bulk", &form);
    assert_eq!(answer.status, 422, "whoever has logged in may send more; but no note is so long");
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

/// What anybody can make the server keep, on every connection, is little.
#[test]
fn the_head_of_a_request_is_bounded() {
    let server = Server::start("");
    let asked = |long: usize| {
        let mut stream = connect(&server);
        let head = "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n";
        _ = stream.write_all(format!("{head}long: {}\r\n\r\n", "x".repeat(long)).as_bytes());
        until_closed(stream)
    };
    assert!(asked(60_000).starts_with("HTTP/1.1 200"));
    let said = asked(200_000);
    assert!(said.is_empty() || said.starts_with("HTTP/1.1 431"), "{said}");
    is_well(&server);
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
    nothing_breaks_a_page(&Server::start(""));
}

/// It takes no NUL, and is stricter with numbers and times.
mod postgres {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn no_query_path_or_cookie_breaks_a_page() {
        let at = std::env::var("REDRIVE_TEST_POSTGRES")
            .expect("REDRIVE_TEST_POSTGRES is not set: run scripts/test, or leave this store out with --skip");
        let name = format!("door{}", std::process::id());
        let mut c = sqlx::PgConnection::connect(&at).await.unwrap();
        let fresh = format!("DROP SCHEMA IF EXISTS {name} CASCADE; CREATE SCHEMA {name}");
        sqlx::raw_sql(AssertSqlSafe(fresh)).execute(&mut c).await.unwrap();
        nothing_breaks_a_page(&Server::start_on(&format!("{at}?options[search_path]={name}")));
    }
}

/// Nor does a NUL in a form or a note.
fn nothing_breaks_a_page(server: &Server) {
    for token in ["rdr_\0_x", "rdr_0011223344556677_\0", "\0"] {
        assert_eq!(server.post(&Visitor::default(), "/login", &[("token", token)]).status, 401, "{token:?}");
    }
    for action in ["resolve", "discard"] {
        let made = server.api("POST", "/tasks", &json!({ "method": "nobodys" })).json();
        let id = made["id"].as_str().unwrap();
        assert_eq!(server.api("POST", &format!("/tasks/{id}/fail"), &Value::Null).status, 200);
        let closed = server.api("POST", &format!("/dead/{id}/{action}"), &json!({ "note": "a\0b" }));
        assert!(closed.status < 300, "{action}: {} {}", closed.status, closed.body);
    }
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
