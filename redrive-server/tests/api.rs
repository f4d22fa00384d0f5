//! The API as a program meets it: a real server, plain HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

/// A server of one's own; stopped with this.
struct Server {
    child: Child,
    address: String,
    _dir: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
        command.args(["serve", "--listen", "127.0.0.1:0"]).current_dir(dir.path()).env_remove("REDRIVE_DATABASE");
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let line = lines.find(|line| line.contains("API:")).unwrap();
        let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned();
        Self { child, address, _dir: dir }
    }

    /// Status, content type and body.
    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let kind = head.lines().find_map(|line| line.strip_prefix("content-type: ")).unwrap_or_default();
        (status, kind.to_owned(), body.to_owned())
    }

    fn json(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (status, _, answer) = self.ask(method, path, &body);
        (status, serde_json::from_str(&answer).unwrap_or(Value::Null))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

#[test]
fn a_task_is_enqueued_seen_failed_and_brought_back() {
    let server = Server::start();
    let new = json!({ "method": "charge", "params": { "order": 7 }, "key": "order-7", "business_type": "order", "business_id": "7" });
    let (status, first) = server.json("POST", "/api/v1/tasks", &new);
    assert_eq!((status, &first["existed"]), (201, &json!(false)));
    let (status, again) = server.json("POST", "/api/v1/tasks", &new);
    assert_eq!((status, &again["id"], &again["existed"]), (200, &first["id"], &json!(true)));
    let id = first["id"].as_str().unwrap();
    let (status, shown) = server.json("GET", &format!("/api/v1/tasks/{id}"), &Value::Null);
    assert_eq!((status, &shown["params"]["order"], &shown["status"]), (200, &json!(7), &json!("PENDING")));
    let (_, listed) = server.json("GET", "/api/v1/tasks?method=charge&status=PENDING&limit=10", &Value::Null);
    assert_eq!(listed["tasks"].as_array().unwrap().len(), 1);
    assert_eq!(server.json("POST", &format!("/api/v1/tasks/{id}/fail"), &Value::Null).1["state"], "ended");
    assert_eq!(server.json("GET", &format!("/api/v1/tasks/{id}"), &Value::Null).0, 404);
    let (_, dead) = server.json("GET", "/api/v1/dead", &Value::Null);
    assert_eq!(dead["dead"][0]["dead_reason"], "failed_by_hand");
    let (status, redriven) = server.json("POST", &format!("/api/v1/dead/{id}/redrive"), &json!({ "by": "alice" }));
    assert_eq!((status, &redriven["state"]), (200, &json!("redriven")));
    let new_id = redriven["id"].as_str().unwrap();
    assert_eq!(server.json("POST", &format!("/api/v1/tasks/{new_id}/cancel"), &Value::Null).1["state"], "ended");
    assert_eq!(server.json("POST", &format!("/api/v1/dead/{id}/resolve"), &json!({ "by": "alice" })).0, 404);
}

#[test]
fn what_is_wrong_is_said_as_a_problem() {
    let server = Server::start();
    let cases = [
        ("POST", "/api/v1/tasks", "{ \"method\": \"m\", \"delai\": 1 }", 400, "not_understood"),
        ("POST", "/api/v1/tasks", "no JSON", 400, "not_understood"),
        ("POST", "/api/v1/tasks", "{ \"method\": \"\" }", 422, "invalid"),
        ("POST", "/api/v1/tasks", "{ \"method\": \"m\", \"business_id\": \"7\" }", 422, "invalid"),
        ("GET", "/api/v1/tasks?limit=0", "", 422, "invalid"),
        ("GET", "/api/v1/tasks?statos=PENDING", "", 400, "not_understood"),
        ("GET", "/api/v1/tasks/seven", "", 422, "invalid"),
        ("GET", "/api/v1/tasks/7", "", 404, "not_found"),
        ("GET", "/api/v1/taskz", "", 404, "no_such_route"),
        ("DELETE", "/api/v1/tasks", "", 405, "no_such_method"),
        ("POST", "/api/v1/dead/7/discard", "{}", 400, "not_understood"),
    ];
    for (method, path, body, status, code) in cases {
        let (got, kind, answer) = server.ask(method, path, body);
        assert_eq!((got, &*kind), (status, "application/problem+json"), "{method} {path} {body}: {answer}");
        let problem: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!((&problem["code"], &problem["status"]), (&json!(code), &json!(status)), "{method} {path} {body}");
        assert!(!problem["detail"].as_str().unwrap().is_empty());
    }
}

#[test]
fn it_is_alive_ready_and_counts() {
    let server = Server::start();
    assert_eq!(server.ask("GET", "/healthz", "").0, 200);
    let (status, ready) = server.json("GET", "/readyz", &Value::Null);
    assert_eq!((status, &ready["ready"]), (200, &json!(true)), "{ready}");
    server.json("POST", "/api/v1/tasks", &json!({ "method": "charge" }));
    assert!(server.ask("GET", "/metrics", "").2.contains("redrive_insert_batch"));
    assert_eq!(server.json("GET", "/api/v1/nodes", &Value::Null).1["nodes"].as_array().unwrap().len(), 1);
}

#[test]
fn a_method_is_paused_and_resumed() {
    let server = Server::start();
    let path = |what: &str| format!("/api/v1/methods/charge/{what}");
    assert_eq!(server.json("POST", &path("pause"), &json!({ "by": "alice" })).1["changed"], true);
    let (_, methods) = server.json("GET", "/api/v1/methods", &Value::Null);
    assert_eq!((&methods["paused"][0]["method"], &methods["paused"][0]["by"]), (&json!("charge"), &json!("alice")));
    assert_eq!(server.json("POST", &path("resume"), &Value::Null).1["changed"], true);
    assert_eq!(server.json("POST", &path("resume"), &Value::Null).1["changed"], false);
}

#[test]
fn it_listens_where_only_this_machine_reaches_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
    let out = command.args(["serve", "--listen", "0.0.0.0:0"]).current_dir(dir.path()).output().unwrap();
    assert!(out.status.code() == Some(1) && String::from_utf8(out.stderr).unwrap().contains("127.0.0.1"));
}
