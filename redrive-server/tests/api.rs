//! The API as a program meets it: a real server, plain HTTP.

#[allow(dead_code, reason = "shared by several tests")]
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use redrive::store::{AuditFilter, AuditOutcome, Registration, Role};
use serde_json::{Value, json};

use support::Server;

/// The trace that every request belongs to.
const TRACE: &str = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n";

impl Server {
    /// Status, content type and body.
    fn said(&self, method: &str, path: &str, body: &str) -> (u16, String, String) {
        self.said_to(&self.token, method, path, body)
    }

    fn said_to(&self, token: &str, method: &str, path: &str, body: &str) -> (u16, String, String) {
        let answer = self.api_as(token, method, path, TRACE, body);
        (answer.status, answer.header("content-type").to_owned(), answer.body)
    }

    fn json(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (status, _, answer) = self.said(method, path, &body);
        (status, serde_json::from_str(&answer).unwrap_or(Value::Null))
    }
}

#[test]
fn a_task_is_enqueued_seen_failed_and_brought_back() {
    let server = Server::start("");
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
    let (status, redriven) = server.json("POST", &format!("/api/v1/dead/{id}/redrive"), &Value::Null);
    assert_eq!((status, &redriven["state"]), (200, &json!("redriven")));
    let new_id = redriven["id"].as_str().unwrap();
    assert_eq!(server.json("POST", &format!("/api/v1/tasks/{new_id}/cancel"), &Value::Null).1["state"], "ended");
    assert_eq!(server.json("POST", &format!("/api/v1/dead/{id}/resolve"), &Value::Null).0, 404);
}

/// A target that fails once, then succeeds, and tells what it got.
fn flaky() -> (u16, std::sync::mpsc::Receiver<String>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, (got, all)) = (listener.local_addr().unwrap().port(), std::sync::mpsc::channel());
    std::thread::spawn(move || {
        for (n, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let (mut request, mut part) = (String::new(), [0; 4096]);
            while !request.ends_with("{\"cents\":4200}") {
                let read = stream.read(&mut part).unwrap();
                request += &String::from_utf8_lossy(&part[..read]);
            }
            let status = if n == 0 { "503 Service Unavailable" } else { "200 OK" };
            write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
            _ = got.send(request);
        }
    });
    (port, all)
}

#[test]
fn a_request_is_delivered_until_it_succeeds() {
    let (port, got) = flaky();
    let server =
        Server::start("[http]\nallow = ['127.0.0.0/8']\n[defaults]\nbackoff = { fixed = '10ms' }\njitter = 'none'");
    let http = json!({ "url": format!("http://127.0.0.1:{port}/invoices"), "body": "{\"cents\":4200}" });
    let (status, enqueued) = server.json("POST", "/api/v1/tasks", &json!({ "http": http, "key": "invoice-7" }));
    assert_eq!(status, 201, "{enqueued}");
    let id = enqueued["id"].as_str().unwrap();
    for attempt in 1..=2 {
        let request = got.recv().unwrap().to_lowercase();
        assert!(request.starts_with("post /invoices"), "{request}");
        assert!(request.contains(&format!("redrive-attempt: {attempt}")), "{request}");
        assert!(request.contains(&format!("webhook-id: {id}")) && request.contains("idempotency-key: invoice-7"));
        assert!(
            request.contains("traceparent: 00-0af7651916cd43dd8448eb211c80319c"),
            "the caller's goes along: {request}"
        );
    }
    while server.json("GET", &format!("/api/v1/tasks/{id}"), &Value::Null).0 == 200 {}
    let (_, again) = server.json("POST", "/api/v1/tasks", &json!({ "http": http, "key": "invoice-7" }));
    assert_eq!(
        (&again["existed"], &again["id"]),
        (&json!(true), &enqueued["id"]),
        "a repeated request is not a second delivery"
    );
}

#[test]
fn all_that_is_wrong_with_a_task_is_said_at_once() {
    let server = Server::start("");
    let new = json!({ "http": { "method": "no method", "url": "nowhere" }, "business_type": "order" });
    let (status, problem) = server.json("POST", "/api/v1/tasks", &new);
    let fields: Vec<&str> =
        problem["errors"].as_array().unwrap().iter().map(|error| error["field"].as_str().unwrap()).collect();
    assert_eq!((status, &fields[..]), (422, &["method", "url", "business_id"][..]), "{problem}");
}

#[test]
fn a_caller_can_wait_for_the_first_try() {
    let (port, got) = flaky();
    let server = Server::start("[http]\nallow = ['127.0.0.0/8']\n[defaults]\nbackoff = { fixed = '1h' }");
    let new =
        json!({ "http": { "url": format!("http://127.0.0.1:{port}/"), "body": "{\"cents\":4200}" }, "wait": true });
    let (status, first) = server.json("POST", "/api/v1/tasks", &new);
    assert_eq!((status, &first["state"]), (202, &json!("deferred")), "{first}");
    let (_, task) = server.json("GET", &format!("/api/v1/tasks/{}", first["id"].as_str().unwrap()), &Value::Null);
    assert_eq!((&task["attempt_count"], &task["last_error"]["kind"]), (&json!(1), &json!("http.503")));
    assert_eq!(task["created_by"], "admin");
    let (status, second) = server.json("POST", "/api/v1/tasks", &new);
    assert_eq!((status, &second["state"], &second["result"]["status"]), (200, &json!("done"), &json!(200)), "{second}");
    let mut unmet = new.clone();
    unmet["policy"] = json!({ "success_if": "status == 201" });
    let (status, unmet) = server.json("POST", "/api/v1/tasks", &unmet);
    let why = "the answer does not satisfy the success condition: 200 OK";
    assert_eq!((status, &unmet["error"]), (202, &json!(why)), "{unmet}");
    let new = json!({ "http": { "url": "http://localhost:1/" }, "wait": true });
    let (status, refused) = Server::start("").json("POST", "/api/v1/tasks", &new);
    assert_eq!((status, &refused["state"]), (200, &json!("rejected")), "{refused}");
    assert!(!refused["error"].as_str().unwrap().contains("rejected"), "the state is said once: {refused}");
    assert_eq!(got.iter().take(3).count(), 3);
}

#[test]
fn who_waits_waits_for_a_paused_method_too() {
    let (port, got) = flaky();
    let server = Server::start("[http]\nallow = ['127.0.0.0/8']");
    assert_eq!(server.json("POST", "/api/v1/methods/http/pause", &json!({})).0, 200);
    let new = json!({ "http": { "url": format!("http://127.0.0.1:{port}/") }, "wait": true });
    let (status, held) = server.json("POST", "/api/v1/tasks", &new);
    assert_eq!((status, &held["state"], &held["error"]), (202, &json!("deferred"), &json!("its method is paused")));
    assert!(got.try_recv().is_err(), "nothing was sent");
}

/// What is enqueued under a key and what is waited for under it are the same task.
#[test]
fn a_key_holds_for_who_waits_as_for_who_enqueues() {
    let (port, got) = flaky();
    let server =
        Server::start("[http]\nallow = ['127.0.0.0/8']\n[defaults]\nbackoff = { fixed = '1h' }\njitter = 'none'");
    let http = json!({ "url": format!("http://127.0.0.1:{port}/"), "body": "{\"cents\":4200}" });
    let post = |key: &str, wait: bool| {
        let new = json!({ "http": http, "key": key, "wait": wait, "business_type": "order", "business_id": "7" });
        server.json("POST", "/api/v1/tasks", &new)
    };
    let (status, first) = post("a", true);
    assert_eq!((status, &first["state"], &first["existed"]), (202, &json!("deferred"), &json!(false)), "{first}");
    for wait in [true, false] {
        let (status, again) = post("a", wait);
        assert_eq!((status, &again["id"], &again["existed"]), (200, &first["id"], &json!(true)), "it lives: {again}");
    }
    let (status, done) = post("b", true);
    assert_eq!((status, &done["state"]), (200, &json!("done")), "{done}");
    for wait in [true, false] {
        let (status, again) = post("b", wait);
        assert_eq!((status, &again["existed"], &again["state"]), (200, &json!(true), &Value::Null), "{again}");
    }
    let requests: Vec<String> = got.try_iter().map(|request| request.to_lowercase()).collect();
    assert_eq!(requests.len(), 2, "each key was sent once: {requests:?}");
    assert!(
        requests[0].contains("idempotency-key: order/7/a") && requests[1].contains("idempotency-key: order/7/b"),
        "{requests:?}"
    );
    let (_, task) = server.json("GET", &format!("/api/v1/tasks/{}", first["id"].as_str().unwrap()), &Value::Null);
    assert_eq!((&task["created_by"], &task["business_id"]), (&json!("admin"), &json!("7")), "{task}");
}

/// What an answer says of a first try is so whatever the settings of the method are: those are for programs.
#[test]
fn the_settings_of_http_change_nothing_for_who_waits() {
    for persist in ["manual", "retry_only", "never", "always"] {
        let (port, got) = flaky();
        let server = Server::start(&format!(
            "[http]\nallow = ['127.0.0.0/8']\n[methods.http]\npersist = '{persist}'\nbackoff = {{ fixed = '1h' }}"
        ));
        let http = json!({ "url": format!("http://127.0.0.1:{port}/"), "body": "{\"cents\":4200}" });
        let (status, first) = server.json("POST", "/api/v1/tasks", &json!({ "http": http, "wait": true }));
        assert_eq!((status, &first["state"]), (202, &json!("deferred")), "{persist}: {first}");
        let keyed = json!({ "http": http, "wait": true, "key": "k" });
        assert_eq!(server.json("POST", "/api/v1/tasks", &keyed).1["state"], "done", "{persist}");
        assert_eq!(server.json("POST", "/api/v1/tasks", &keyed).1["existed"], true, "{persist}");
        assert_eq!(got.try_iter().count(), 2, "{persist}: the key was sent once");
    }
}

#[test]
fn a_callers_own_policy_wins_over_the_settings_of_its_method() {
    let server = Server::start("[methods.http]\nmax_attempts = 9\nmax_crashes = 2\n[methods.charge]\nmax_attempts = 9");
    let http = json!({ "url": "https://example.invalid/" });
    for mut new in [json!({ "http": http }), json!({ "method": "charge" })] {
        new["policy"] = json!({ "max_attempts": 3 });
        new["delay"] = "1h".into();
        let (status, enqueued) = server.json("POST", "/api/v1/tasks", &new);
        assert_eq!(status, 201, "{enqueued}");
        let (_, task) =
            server.json("GET", &format!("/api/v1/tasks/{}", enqueued["id"].as_str().unwrap()), &Value::Null);
        assert_eq!(task["policy"]["max_attempts"], 3, "{task}");
        let crashes = if new.get("http").is_some() { json!(2) } else { Value::Null };
        assert_eq!(task["policy"]["max_crashes"], crashes, "what it does not say is as the settings have it: {task}");
    }
}

#[test]
fn addresses_that_only_the_server_can_reach_are_refused() {
    let server = Server::start("");
    for url in [
        "http://127.0.0.1/",
        "http://2130706433/",
        "http://[::ffff:10.0.0.1]/",
        "http://169.254.169.254/latest/meta-data",
    ] {
        let (status, problem) = server.json("POST", "/api/v1/tasks", &json!({ "http": { "url": url } }));
        assert_eq!((status, &problem["code"]), (422, &json!("invalid")), "{url}: {problem}");
    }
    // A name is judged when it is resolved.
    let (status, enqueued) = server.json("POST", "/api/v1/tasks", &json!({ "http": { "url": "http://localhost:1/" } }));
    assert_eq!(status, 201, "{enqueued}");
    let dead = loop {
        let (_, dead) = server.json("GET", "/api/v1/dead", &Value::Null);
        if dead["dead"].as_array().is_some_and(|all| !all.is_empty()) {
            break dead;
        }
    };
    assert_eq!(dead["dead"][0]["task"]["last_error"]["kind"], "refused_address", "{dead}");
}

#[test]
fn what_is_wrong_is_said_as_a_problem() {
    let server = Server::start("");
    let cases = [
        ("POST", "/api/v1/tasks", "{ \"method\": \"m\", \"delai\": 1 }", 400, "not_understood"),
        ("POST", "/api/v1/tasks", "no JSON", 400, "not_understood"),
        ("POST", "/api/v1/tasks", "{}", 422, "invalid"),
        ("POST", "/api/v1/tasks", "{ \"method\": \"m\", \"wait\": true }", 422, "invalid"),
        ("POST", "/api/v1/tasks", "{ \"http\": { \"url\": \"ftp://x\" } }", 422, "invalid"),
        ("POST", "/api/v1/tasks", "{ \"http\": { \"url\": \"/x\", \"target\": \"nobody\" } }", 422, "invalid"),
        ("POST", "/api/v1/tasks", "{ \"method\": \"\" }", 422, "invalid"),
        ("POST", "/api/v1/tasks", "{ \"method\": \"m\", \"business_id\": \"7\" }", 422, "invalid"),
        ("GET", "/api/v1/tasks?limit=0", "", 422, "invalid"),
        ("GET", "/api/v1/tasks?statos=PENDING", "", 400, "not_understood"),
        ("GET", "/api/v1/tasks/seven", "", 422, "invalid"),
        ("GET", "/api/v1/tasks/7", "", 404, "not_found"),
        ("GET", "/api/v1/taskz", "", 404, "no_such_route"),
        ("DELETE", "/api/v1/tasks", "", 405, "no_such_method"),
        ("POST", "/api/v1/dead/7/discard", "{ \"by\": \"me\" }", 400, "not_understood"),
        ("POST", "/api/v1/dead/7/redrive", "{ \"noet\": \"why\" }", 400, "not_understood"),
        ("POST", "/api/v1/tasks/7/cancel", "{ \"noet\": \"why\" }", 400, "not_understood"),
        ("POST", "/api/v1/tasks/7/fail", "why", 400, "not_understood"),
        ("POST", "/api/v1/tasks/7/retry", "7", 400, "not_understood"),
        ("POST", "/api/v1/methods/m/pause", "{ \"until\": \"noon\" }", 400, "not_understood"),
        ("POST", "/api/v1/methods/m/resume", "{ \"note\": 7 }", 400, "not_understood"),
        ("POST", "/api/v1/gates/m/release", "{ \"state\": \"open\" }", 400, "not_understood"),
        ("POST", "/api/v1/gates/m/reset", "{ \"noet\": \"why\" }", 400, "not_understood"),
        ("POST", "/api/v1/gates/%ff/release", "", 400, "not_understood"),
        ("POST", "/api/v1/gates/a%00b/hold", "{ \"state\": \"open\" }", 400, "not_understood"),
        ("DELETE", "/api/v1/settings/%ff", "", 400, "not_understood"),
        ("PUT", "/api/v1/settings/a%00b", "{ \"value\": 1 }", 400, "not_understood"),
        ("DELETE", "/api/v1/tokens/%ff", "", 400, "not_understood"),
        ("GET", "/api/v1/guards/%ff/check", "", 400, "not_understood"),
        ("GET", "/api/v1/guards/bills/rows/%ff", "", 400, "not_understood"),
        ("POST", "/api/v1/guards/%ff/success", "{ \"dataId\": 1 }", 400, "not_understood"),
        ("GET", "/api/v1/sagas/%ff", "", 400, "not_understood"),
        ("GET", "/api/v1/tasks/%ff", "", 400, "not_understood"),
        ("POST", "/api/v1/methods/%ff/pause", "", 400, "not_understood"),
        ("GET", "/api/v1/tasks?after=seven", "", 400, "not_understood"),
        ("GET", "/api/v1/dead?limit=2&limit=3", "", 400, "not_understood"),
        ("GET", "/api/v1/events?what=foo", "", 422, "invalid"),
        ("GET", "/api/v1/events?what=", "", 422, "invalid"),
    ];
    for (method, path, body, status, code) in cases {
        let (got, kind, answer) = server.said(method, path, body);
        assert_eq!((got, &*kind), (status, "application/problem+json"), "{method} {path} {body}: {answer}");
        let problem: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!((&problem["code"], &problem["status"]), (&json!(code), &json!(status)), "{method} {path} {body}");
        assert!(!problem["detail"].as_str().unwrap().is_empty());
    }
}

#[test]
fn a_field_of_the_wrong_type_is_named() {
    let server = Server::start("");
    for (body, named) in [
        (json!({ "http": { "url": "https://example.org", "body": { "a": 1 } } }), "http.body: invalid type: map"),
        (
            json!({ "http": { "url": "https://example.org", "headers": { "x-a": 1 } } }),
            "http.headers.x-a: invalid type",
        ),
        (json!({ "http": { "url": "https://example.org", "bdy": "x" } }), "http.bdy: unknown field"),
        (json!({ "method": "m", "priority": 40_000 }), "priority: invalid value"),
        (json!({ "method": "m", "delay": 300 }), "delay: invalid type"),
        (json!({ "method": "m", "delay": "5 parsecs" }), "delay: "),
        (json!({ "method": "m", "business_id": 7 }), "business_id: invalid type"),
        (json!({ "method": "m", "policy": { "max_attempts": "many" } }), "policy: "),
        (json!([1]), "invalid type: integer"),
    ] {
        let (status, problem) = server.json("POST", "/api/v1/tasks", &body);
        let said = problem["detail"].as_str().unwrap();
        assert!(status == 400 && said.contains(named), "{body}: {problem}");
        let (_, _, line) = server.said("POST", "/api/v1/tasks/bulk", &body.to_string());
        assert!(line.contains(named), "{line}");
    }
    let (_, _, broken) = server.said("POST", "/api/v1/tasks", "{\"http\": {\"url\" 7}}");
    assert!(broken.contains("the body: expected `:` at line 1"), "no field is wrong: {broken}");
    let (status, _, more) = server.said("POST", "/api/v1/tasks", "{\"method\": \"m\"} {}");
    assert!(status == 400 && more.contains("the body: trailing characters"), "{more}");
}

/// The command line knows by it that the answer is redrive's and not that of something before it.
#[test]
fn every_answer_of_the_api_says_its_version() {
    let server = Server::start("[server]\nmax_body = 1024");
    let version = |token: &str, method: &str, path: &str, body: &str| {
        let answer = server.api_as(token, method, path, "", body);
        (answer.status, answer.header("redrive-version").to_owned())
    };
    let large = "x".repeat(2_000);
    for (token, method, path, body, status) in [
        (&*server.token, "GET", "/api/v1/overview", "", 200),
        (&*server.token, "POST", "/api/v1/tasks", "{ \"method\": \"m\" }", 201),
        (&*server.token, "POST", "/api/v1/tasks", "{", 400),
        (&*server.token, "POST", "/api/v1/tasks", &*large, 413),
        (&*server.token, "GET", "/api/v1/taskz", "", 404),
        (&*server.token, "GET", "/api/v1", "", 404),
        (&*server.token, "DELETE", "/api/v1/tasks", "", 405),
        ("", "GET", "/api/v1/overview", "", 401),
    ] {
        let said = version(token, method, path, body);
        assert_eq!(said, (status, env!("CARGO_PKG_VERSION").to_owned()), "{method} {path}");
    }
    for path in ["/healthz", "/login", "/api/v10/tasks"] {
        assert_eq!(version("", "GET", path, "").1, "", "{path}");
    }
}

#[tokio::test]
async fn redrive_s_own_methods_are_not_named_from_outside() {
    let server = Server::start("[targets.billing]\nbase_url = 'https://billing.example.org'");
    let refused = |method: &str, path: &str, body: &Value, field: &str| {
        let (status, problem) = server.json(method, path, body);
        assert_eq!((status, &problem["errors"][0]["field"]), (422, &json!(field)), "{path} {body}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains("redrive's own"), "{problem}");
    };
    let own = ["http", "http.billing", "saga.http", "redrive.saga.ended"];
    for method in own {
        refused("POST", "/api/v1/tasks", &json!({ "method": method, "params": {} }), "method");
        let (_, _, line) = server.said("POST", "/api/v1/tasks/bulk", &format!("{{\"method\": \"{method}\"}}"));
        assert!(line.contains("\"problem\"") && line.contains("redrive's own"), "{line}");
    }
    let request = json!({ "url": "https://example.org" });
    for field in ["on_success", "on_final_failure"] {
        let policy = json!({ field: "redrive.saga.ended" });
        refused("POST", "/api/v1/tasks", &json!({ "method": "m", "policy": policy }), field);
        refused("POST", "/api/v1/tasks", &json!({ "http": request, "policy": policy }), field);
        refused("POST", "/api/v1/tasks", &json!({ "http": request, "policy": policy, "wait": true }), field);
        let bulk = json!({ "action": "redrive", "filter": {}, "policy": policy });
        refused("POST", "/api/v1/dead/actions", &bulk, field);
        let path = format!("defaults.{field}");
        refused("PUT", &format!("/api/v1/settings/{path}"), &json!({ "value": "saga.http" }), &path);
    }
    assert_eq!(server.json("GET", "/api/v1/overview", &Value::Null).1["pending"]["n"], 0);

    let id = server.json("POST", "/api/v1/tasks", &json!({ "method": "m" })).1["id"].as_str().unwrap().to_owned();
    let policy = json!({ "on_final_failure": "redrive.saga.ended" });
    refused("PUT", &format!("/api/v1/tasks/{id}/policy"), &policy, "on_final_failure");
    server.json("POST", &format!("/api/v1/tasks/{id}/fail"), &Value::Null);
    refused("POST", &format!("/api/v1/dead/{id}/redrive"), &json!({ "policy": policy }), "on_final_failure");
}

/// As a saga's step has it: the saga waits to hear of its end.
#[tokio::test]
async fn a_callback_of_redrive_s_own_stays_when_a_policy_is_edited_and_its_task_is_brought_back() {
    let server = Server::start("");
    let store = server.store().await;
    let policy = redrive::Policy { on_final_failure: Some("redrive.told".into()), ..redrive::Policy::default() };
    let task = redrive::NewTask::new("http.nobodys", &1).unwrap().policy(policy);
    let id = store.insert(vec![task], store.now().await.unwrap()).await.unwrap()[0].id;
    let edit = |policy: &Value| server.json("PUT", &format!("/api/v1/tasks/{id}/policy"), policy);
    assert_eq!(edit(&json!({ "max_attempts": 3, "on_final_failure": "redrive.told" })).0, 204);
    let (status, problem) = edit(&json!({ "max_attempts": 3 }));
    assert_eq!((status, &problem["errors"][0]["field"]), (422, &json!("on_final_failure")), "{problem}");
    assert_eq!(server.json("POST", &format!("/api/v1/tasks/{id}/fail"), &Value::Null).0, 200);
    let (status, back) = server.json("POST", &format!("/api/v1/dead/{id}/redrive"), &Value::Null);
    assert_eq!((status, &back["state"]), (200, &json!("redriven")), "{back}");
}

#[test]
fn it_is_alive_ready_and_counts() {
    let server = Server::start("");
    assert_eq!(server.said("GET", "/healthz", "").0, 200);
    let (status, ready) = server.json("GET", "/readyz", &Value::Null);
    assert_eq!((status, &ready["ready"]), (200, &json!(true)), "{ready}");
    server.json("POST", "/api/v1/tasks", &json!({ "method": "charge" }));
    assert!(server.said("GET", "/metrics", "").2.contains("redrive_insert_batch"));
    assert_eq!(server.json("GET", "/api/v1/nodes", &Value::Null).1["nodes"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_node_that_left_in_good_order_did_not_die() {
    let server = Server::start("");
    let store = server.store().await;
    let now = store.now().await.unwrap();
    let join = async |name: &str| {
        let who = Registration { name: name.into(), ..Registration::default() };
        store.register(&who, now).await.unwrap()
    };
    let (left, crashed, leaving) = (join("left").await, join("crashed").await, join("leaving").await);
    store.announce_leave(left).await.unwrap();
    store.retire(left).await.unwrap();
    assert!(store.fence(crashed, 0).await.unwrap());
    store.announce_leave(leaving).await.unwrap();
    let (_, all) = server.json("GET", "/api/v1/nodes", &Value::Null);
    let states: Vec<&str> =
        all["nodes"].as_array().unwrap().iter().map(|node| node["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["alive", "left", "dead", "leaving"], "{all}");
}

#[test]
fn a_method_is_paused_and_resumed() {
    let server = Server::start("");
    let path = |what: &str| format!("/api/v1/methods/charge/{what}");
    assert_eq!(server.json("POST", &path("pause"), &Value::Null).1["changed"], true);
    let (_, methods) = server.json("GET", "/api/v1/methods", &Value::Null);
    let charge = methods["methods"].as_array().unwrap().iter().find(|m| m["method"] == "charge").unwrap();
    assert_eq!((&charge["paused"]["by"], &charge["nodes"]), (&json!("admin"), &json!(0)));
    assert_eq!(server.json("POST", &path("resume"), &Value::Null).1["changed"], true);
    assert_eq!(server.json("POST", &path("resume"), &Value::Null).1["changed"], false);
}

#[tokio::test]
async fn each_role_may_do_its_own_and_what_is_refused_is_in_the_audit() {
    let server = Server::start("");
    let store = server.store().await;
    let now = store.now().await.unwrap();
    let made = store.create_token("eve", Role::Viewer, None, "test", now).await.unwrap();
    let viewer = made.secret.reveal();
    let (_, enqueued) =
        server.json("POST", "/api/v1/tasks", &json!({ "method": "charge", "params": { "card": "4242" } }));
    let task = format!("/api/v1/tasks/{}", enqueued["id"].as_str().unwrap());
    let (status, _, shown) = server.said_to(viewer, "GET", &task, "");
    assert!(status == 200 && !shown.contains("4242"), "a viewer sees no params: {shown}");
    for path in ["cancel", "fail", "retry"] {
        assert_eq!(server.said_to(viewer, "POST", &format!("{task}/{path}"), "").0, 403);
    }
    for (method, path) in
        [("POST", "/api/v1/tasks"), ("POST", "/api/v1/methods/charge/pause"), ("POST", "/api/v1/dead/7/discard")]
    {
        assert_eq!(server.said_to(viewer, method, path, "{}").0, 403, "{path}");
    }
    assert_eq!(server.said_to(viewer, "GET", "/api/v1/overview", "").0, 200);
    assert_eq!(server.said_to(viewer, "GET", "/api/v1/audit", "").0, 403);
    assert_eq!(server.said_to("", "GET", &task, "").0, 401);
    assert_eq!(server.said_to("rdr_0011223344556677_wrong", "GET", &task, "").0, 401);
    assert_eq!(server.said("DELETE", &format!("/api/v1/tokens/{}", made.token.id), "").0, 204);
    assert_eq!(server.said_to(viewer, "GET", &task, "").0, 401);
    let refused =
        store.audits(&AuditFilter { action: Some("api.".into()), ..AuditFilter::default() }, 100).await.unwrap();
    assert_eq!(refused.len(), 10, "{refused:?}");
    assert!(refused.iter().all(|a| matches!(a.entry.outcome, AuditOutcome::Refused(_))));
    assert!(refused.iter().all(|a| a.entry.target.starts_with("/api/v1/")));
    let (_, overview) = server.json("GET", "/api/v1/overview", &Value::Null);
    assert_eq!(overview["pending"]["n"], 1, "{overview}");
    let (_, audit) = server.json("GET", "/api/v1/audit?action=api.&limit=2", &Value::Null);
    assert!(audit["audit"].as_array().unwrap().len() == 2 && audit["next"].is_string(), "{audit}");
    assert_eq!(server.said("POST", &format!("{task}/cancel"), "").0, 200);
    let done = store.audits(&AuditFilter { who: Some("admin".into()), ..AuditFilter::default() }, 10).await.unwrap();
    assert!(done.iter().any(|a| a.entry.action == "task.cancel"), "{done:?}");
}

#[test]
fn an_address_that_tries_many_wrong_tokens_has_to_wait() {
    let server = Server::start("");
    for _ in 0..20 {
        assert_eq!(server.said_to("rdr_0011223344556677_wrong", "GET", "/api/v1/tasks", "").0, 401);
    }
    assert_eq!(server.said_to("rdr_0011223344556677_wrong", "GET", "/api/v1/tasks", "").0, 429);
    assert_eq!(server.said("GET", "/api/v1/tasks", "").0, 200, "a good one is not refused for the sake of wrong ones");
    assert_eq!(server.said("GET", "/healthz", "").0, 200);
}

#[tokio::test]
async fn who_asks_again_and_again_for_what_is_not_theirs_does_not_fill_the_audit() {
    let server = Server::start("");
    let (viewer, _) = server.new_token("eve", Role::Viewer).await;
    let eve = server.log_in(&viewer);
    assert_eq!(server.get(&eve, "/tasks/bulk?action=cancel&which=filter").status, 403);
    for _ in 0..25 {
        assert_eq!(server.said_to(&viewer, "GET", "/api/v1/audit", "").0, 403);
    }
    let of_eve = AuditFilter { who: Some("eve".into()), ..AuditFilter::default() };
    let refused = server.store().await.audits(&of_eve, 100).await.unwrap();
    assert_eq!(refused.len(), 20, "{refused:?}");
    assert_eq!(refused.last().map(|a| &*a.entry.target), Some("/tasks/bulk"));
}

/// The lines of an answer.
fn lines(answer: &str) -> Vec<Value> {
    answer.lines().filter(|line| line.starts_with('{')).map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn thousands_are_enqueued_at_once_and_each_line_has_its_answer() {
    let server = Server::start("");
    let mut body: String = (0..2_000).map(|n| format!("{{\"method\": \"charge\", \"key\": \"k{n}\"}}\n")).collect();
    body += "{\"method\": \"charge\", \"key\": \"k7\"}\n\n{\"mehtod\": 1}\nno json\n{\"method\": \"charge\", \"priority\": 1}";
    let (status, kind, answer) = server.said("POST", "/api/v1/tasks/bulk", &body);
    let answers = lines(&answer);
    assert_eq!((status, &*kind, answers.len()), (200, "application/x-ndjson", 2_004));
    assert!(answers[..2_000].iter().all(|a| a["existed"] == false));
    assert_eq!((&answers[2_000]["id"], &answers[2_000]["existed"]), (&answers[7]["id"], &json!(true)));
    assert!(answers[2_001]["problem"]["detail"].as_str().unwrap().contains("mehtod"), "{}", answers[2_001]);
    assert_eq!(answers[2_002]["problem"]["code"], "not_understood");
    assert!(answers[2_003]["id"].is_string());
    assert_eq!(server.json("GET", "/api/v1/overview", &Value::Null).1["pending"]["n"], 2_001);
}

#[test]
fn many_are_done_at_once_after_a_dry_run_and_the_audit_has_it() {
    let server = Server::start("");
    let body: String = (0..1_200).map(|n| format!("{{\"method\": \"m{}\", \"params\": {n}}}\n", n % 2)).collect();
    server.said("POST", "/api/v1/tasks/bulk", &body);
    let filter = json!({ "method": "m1" });
    let ask = |path: &str, body: &Value| lines(&server.said("POST", path, &body.to_string()).2);
    let dry = ask("/api/v1/tasks/actions", &json!({ "action": "fail", "filter": filter, "dry_run": true }));
    assert_eq!((dry.len(), &dry[0]["state"], &dry[0]["count"]["n"]), (1, &json!("dry_run"), &json!(600)));
    let failed = ask("/api/v1/tasks/actions", &json!({ "action": "fail", "filter": filter, "note": "they are old" }));
    let last = failed.last().unwrap();
    assert_eq!((&last["state"], &last["done"]), (&json!("finished"), &json!(600)), "{last}");
    let first_two: Vec<Value> =
        server.json("GET", "/api/v1/dead?limit=2", &Value::Null).1["dead"].as_array().unwrap().clone();
    let ids: Vec<&Value> = first_two.iter().map(|letter| &letter["task"]["id"]).collect();
    let redriven = ask("/api/v1/dead/actions", &json!({ "action": "redrive", "ids": ids, "per_second": 1_000 }));
    assert_eq!(redriven.last().unwrap()["done"], 2);
    let discarded =
        ask("/api/v1/dead/actions", &json!({ "action": "discard", "filter": { "reason": "failed_by_hand" } }));
    assert_eq!(discarded.last().unwrap()["done"], 598);
    let (status, refused) = server.json("POST", "/api/v1/dead/actions", &json!({ "action": "discard" }));
    assert_eq!(
        (status, &refused["errors"][0]["field"]),
        (422, &json!("filter")),
        "neither ids nor filter is not everything"
    );
    let (_, audit) = server.json("GET", "/api/v1/audit?action=task.fail", &Value::Null);
    assert_eq!(
        (&audit["audit"][0]["note"], &audit["audit"][0]["after"]["result"]["done"]),
        (&json!("they are old"), &json!(600))
    );
    let (_, ended) = server.json("GET", "/api/v1/archive?ended_as=discarded&limit=1", &Value::Null);
    assert!(ended["archive"][0]["ended_by"] == "admin" && ended["next"].is_string(), "{ended}");
}

/// "Discard at most ten" must not discard all.
#[test]
fn what_is_done_to_many_has_no_pages() {
    let server = Server::start("");
    let id = server.json("POST", "/api/v1/tasks", &json!({ "method": "m" })).1["id"].clone();
    for (path, action) in [("tasks", "cancel"), ("dead", "discard")] {
        for filter in [json!({ "limit": 10 }), json!({ "after": id })] {
            let bulk = json!({ "action": action, "filter": filter });
            let (status, problem) = server.json("POST", &format!("/api/v1/{path}/actions"), &bulk);
            assert_eq!((status, &problem["code"]), (400, &json!("not_understood")), "{path} {filter}: {problem}");
        }
    }
    assert_eq!(server.json("GET", "/api/v1/tasks?method=m&limit=1", &Value::Null).1["tasks"][0]["id"], id);
    let page = format!("/api/v1/tasks?after={}", id.as_str().unwrap());
    assert_eq!(server.json("GET", &page, &Value::Null).1["tasks"], json!([]));
    let document = server.json("GET", "/openapi.json", &Value::Null).1;
    for of in ["OfTasks", "OfDead"] {
        let fields = document["components"]["schemas"][of]["properties"].as_object().unwrap();
        assert!(fields.contains_key("method") && !fields.contains_key("limit"), "{of}: {fields:?}");
    }
    let asked: Vec<_> = document["paths"]["/api/v1/dead"]["get"]["parameters"].as_array().unwrap().iter().collect();
    for name in ["reason", "after", "limit"] {
        assert!(asked.iter().any(|field| field["name"] == name && field["in"] == "query"), "{name}: {asked:?}");
    }
}

#[test]
fn a_letter_is_found_by_its_text_seen_taken_over_and_resolved() {
    let server = Server::start("[http]\nallow = ['127.0.0.0/8']");
    // Nothing listens there: it is dead at once, with the error of the connection.
    let new = json!({ "http": { "url": "http://127.0.0.1:9/" }, "policy": { "max_attempts": 1, "on_exhausted": "escalate" } });
    let id = server.json("POST", "/api/v1/tasks", &new).1["id"].as_str().unwrap().to_owned();
    let letter = format!("/api/v1/dead/{id}");
    while server.said("GET", &letter, "").0 == 404 {
        std::thread::yield_now();
    }
    let found = |text: &str| {
        let (_, found) = server.json("GET", &format!("/api/v1/dead?error_contains={text}"), &Value::Null);
        found["dead"].as_array().unwrap().len()
    };
    assert_eq!((found("connect"), found("nonsense")), (1, 0));
    let say = |what: &str, body: &Value| server.json("POST", &format!("{letter}/{what}"), body).0;
    assert_eq!(say("acknowledge", &Value::Null), 204);
    assert_eq!(say("take-over", &json!({ "owner": "bob", "note": "mine" })), 204);
    let (_, shown) = server.json("GET", &letter, &Value::Null);
    assert!(shown["acknowledged_at"].is_string() && shown["owner"] == "bob", "{shown}");
    assert_eq!(shown["next_remind_time"], Value::Null, "nobody is reminded of what somebody has taken over");
    assert_eq!((say("resolve", &json!({ "note": "by phone" })), say("resolve", &Value::Null)), (204, 404));
}

/// With an action on one as with one on many.
#[test]
fn what_a_person_says_about_it_is_in_the_audit() {
    let server = Server::start("");
    let act = |path: &str| {
        let note = json!({ "note": format!("about {path}") });
        let (status, answer) = server.json("POST", &format!("/api/v1/{path}"), &note);
        assert!(status == 200 || status == 204, "{path}: {status} {answer}");
        let (_, audit) = server.json("GET", "/api/v1/audit?limit=1", &Value::Null);
        assert_eq!(audit["audit"][0]["note"], note["note"], "{path}: {audit}");
        answer
    };
    let enqueue = || {
        let new = json!({ "method": "nobodys", "delay": "1h" });
        server.json("POST", "/api/v1/tasks", &new).1["id"].as_str().unwrap().to_owned()
    };
    act(&format!("tasks/{}/cancel", enqueue()));
    let id = enqueue();
    act(&format!("tasks/{id}/retry"));
    act(&format!("tasks/{id}/fail"));
    assert_eq!(act(&format!("dead/{id}/redrive"))["state"], "redriven");
    act("methods/nobodys/pause");
    act("methods/nobodys/resume");
    server.json("POST", "/api/v1/gates/http/hold", &json!({ "state": "open" }));
    act("gates/http/release");
    act("gates/http/reset");
    server.json("POST", "/api/v1/methods/nobodys/pause", &Value::Null);
    let (_, audit) = server.json("GET", "/api/v1/audit?limit=1", &Value::Null);
    assert_eq!((&audit["audit"][0]["action"], &audit["audit"][0]["note"]), (&json!("method.pause"), &Value::Null));
}

/// By its bytes, as they are what is stored.
#[test]
fn a_note_that_would_be_cut_is_refused() {
    let server = Server::start("");
    let new = json!({ "method": "nobodys", "delay": "1h" });
    let id = server.json("POST", "/api/v1/tasks", &new).1["id"].as_str().unwrap().to_owned();
    let say = |path: &str, body: Value, note: &str| {
        let Value::Object(mut body) = body else { panic!("{body}") };
        body.insert("note".into(), note.into());
        server.json("POST", &format!("/api/v1/{path}"), &Value::Object(body))
    };
    let (longest, longer) = ("é".repeat(2_048), "é".repeat(2_049));
    let retry = format!("tasks/{id}/retry");
    for (path, body) in [
        (&*retry, json!({})),
        (&format!("dead/{id}/redrive"), json!({})),
        (&format!("dead/{id}/take-over"), json!({ "owner": "bob" })),
        ("methods/nobodys/pause", json!({})),
        ("tasks/actions", json!({ "action": "cancel", "filter": {} })),
        ("dead/actions", json!({ "action": "discard", "filter": {} })),
        ("gates/http/hold", json!({ "state": "open" })),
    ] {
        let (status, problem) = say(path, body, &longer);
        assert_eq!((status, &problem["errors"][0]["field"]), (422, &json!("note")), "{path}: {problem}");
    }
    assert_eq!(say(&retry, json!({}), &longest).0, 204);
    let (_, audit) = server.json("GET", "/api/v1/audit?limit=1", &Value::Null);
    assert_eq!(audit["audit"][0]["note"], longest);
    let hold = |bytes| say("gates/http/hold", json!({ "state": "open" }), &"x".repeat(bytes));
    assert_eq!((hold(1_001).0, hold(1_000).1["why"].as_str().map(str::len)), (422, Some(1_000)));
}

/// Whoever asks for a thousand tasks does not get a gigabyte.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_ends_by_its_bytes() {
    let server = Server::start("");
    let (viewer, _) = server.new_token("eve", Role::Viewer).await;
    let store = server.store().await;
    let large = "x".repeat(1_000_000);
    let new = |n: u32| redrive::NewTask::new("nobodys", &(n, &large)).unwrap();
    let tasks = store.insert((0..20).map(new).collect(), store.now().await.unwrap()).await.unwrap();
    let mut ids: Vec<_> = tasks.iter().map(|task| task.id).collect();
    ids.sort_unstable();
    let page = |token: &str, list: &str, after: &str| {
        let (status, _, page) = server.said_to(token, "GET", &format!("/api/v1/{list}?limit=1000{after}"), "");
        assert_eq!(status, 200, "{list}");
        let page: Value = serde_json::from_str(&page).unwrap();
        (page[list].as_array().unwrap().len(), page["next"].as_str().map(str::to_owned))
    };
    let all = |action: &str, list: &str| {
        let body = json!({ "action": action, "filter": {} });
        assert_eq!(server.json("POST", &format!("/api/v1/{list}/actions"), &body).0, 200);
    };
    for list in ["tasks", "dead", "archive"] {
        let (first, next) = page(&server.token, list, "");
        assert_eq!(first, 17, "{list}: 16 MiB, and what was begun");
        let next = next.expect("there are more");
        assert_eq!(next, ids[3].to_string(), "newest first");
        assert_eq!(page(&server.token, list, &format!("&after={next}")), (3, None), "{list}");
        assert_eq!(page(&viewer, list, ""), (20, None), "{list}: who sees no params need not wait for them");
        match list {
            "tasks" => all("fail", "tasks"),
            _ => all("discard", "dead"),
        }
    }
}

#[test]
fn whether_there_is_a_limit_by_business_waits_for_the_next_start() {
    let server = Server::start("");
    // Whether the server has the method itself, or only others have.
    for method in ["charge", "charge", "http"] {
        let field = format!("methods.{method}.per_business");
        let (path, waiting) = (&*format!("/api/v1/settings/{field}"), json!([field]));
        let (status, answer) = server.json("PUT", path, &json!({ "value": 1 }));
        assert_eq!((status, &answer["waiting"]), (200, &waiting), "{answer}");
        let (status, answer) = server.json("PUT", path, &json!({ "value": 2 }));
        assert_eq!((status, &answer["waiting"]), (200, &waiting), "there was none when nodes started: {answer}");
        assert_eq!(server.json("PUT", "/api/v1/settings/persist", &json!({ "value": "on_failure" })).0, 204);
        let (status, answer) = server.json("DELETE", path, &Value::Null);
        assert_eq!((status, &answer["waiting"]), (200, &waiting), "{answer}");
        assert_eq!(server.json("DELETE", path, &Value::Null).0, 204, "there was none");
    }
    let (limited, path) =
        (Server::start("[methods.http]\nper_business = 1"), "/api/v1/settings/methods.http.per_business");
    assert_eq!(limited.json("PUT", path, &json!({ "value": 2 })).0, 204, "another number holds at once");
    assert_eq!(limited.json("DELETE", path, &Value::Null).0, 204, "and so does that of the file");
    let document = server.json("GET", "/openapi.json", &Value::Null).1;
    for method in ["put", "delete"] {
        let answers = document["paths"]["/api/v1/settings/{path}"][method]["responses"].as_object().unwrap();
        assert!(answers.contains_key("200") && answers.contains_key("204"), "{answers:?}");
    }
}

#[test]
fn a_field_is_set_and_taken_back() {
    let server = Server::start("");
    let path = "/api/v1/settings/methods.charge.concurrency";
    assert_eq!(server.json("PUT", path, &json!({ "value": 3 })).0, 204);
    let (_, all) = server.json("GET", "/api/v1/settings", &Value::Null);
    assert_eq!((&all["settings"]["methods.charge.concurrency"], &all["set"][0]["by"]), (&json!(3), &json!("admin")));
    let (status, refused) = server.json("PUT", "/api/v1/settings/engine.lease", &json!({ "value": "1m" }));
    assert!(status == 422 && refused["detail"].as_str().unwrap().contains("file"), "{refused}");
    assert_eq!(server.said("DELETE", path, "").0, 204);
    assert_eq!(server.json("GET", "/api/v1/settings", &Value::Null).1["set"], json!([]));
}

#[test]
fn what_happens_is_told_as_it_happens() {
    let server = Server::start("");
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let token = &server.token;
    write!(
        stream,
        "GET /api/v1/events?what=enqueued,dead HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n"
    )
    .unwrap();
    let mut told = BufReader::new(stream).lines().map(Result::unwrap);
    assert!(told.find(|line| line.contains("text/event-stream")).is_some());
    let id = server.json("POST", "/api/v1/tasks", &json!({ "method": "charge", "delay": "1h" })).1["id"].clone();
    assert!(told.find(|line| line.contains("event: enqueued")).is_some());
    let data = told.find(|line| line.contains("data:")).unwrap();
    assert!(data.contains(id.as_str().unwrap()) && data.contains("charge"), "{data}");
    let (status, problem) = server.json("GET", "/api/v1/events?what=dead,foo", &Value::Null);
    let said = problem["detail"].as_str().unwrap();
    assert_eq!((status, &problem["errors"][0]["field"]), (422, &json!("what")), "{problem}");
    assert!(said.contains("\"foo\"") && said.contains("half_open"), "it names what there is: {problem}");
}

#[test]
fn the_document_describes_every_route_and_the_page_shows_it() {
    let server = Server::start("");
    let (status, document) = server.json("GET", "/openapi.json", &Value::Null);
    assert_eq!((status, &document["openapi"]), (200, &json!("3.1.0")));
    let paths = document["paths"].as_object().unwrap();
    assert!(
        paths.len() >= 25 && paths.contains_key("/api/v1/tasks/bulk") && paths.contains_key("/readyz"),
        "{:?}",
        paths.keys()
    );
    for (path, item) in paths.iter().filter(|(path, _)| path.starts_with("/api/")) {
        for (method, operation) in item.as_object().unwrap() {
            assert!(operation["summary"].is_string(), "{method} {path} says what it does");
            assert!(operation["responses"]["401"].is_object(), "{method} {path}");
            let path = path.replace("{id}", "1").replace("{method}", "m").replace("{path}", "persist");
            assert_eq!(
                server.said_to("", &method.to_uppercase(), &path, "").0 / 100,
                4,
                "{method} {path} asks for a token"
            );
        }
    }
    let (status, kind, page) = server.said_to("", "GET", "/docs", "");
    assert!(status == 200 && kind.starts_with("text/html") && page.contains("openapi.js"));
}

#[test]
fn a_host_that_is_down_is_held_back_and_people_decide_about_its_gate() {
    let gate = "[http]\nallow = ['127.0.0.0/8']\n[http.gate.breaker]\ntrips = [{ consecutive = 3 }]\nopen_wait = { fixed = '1h' }\n";
    let server = Server::start(gate);
    for n in 0..5 {
        let new = json!({ "http": { "url": "http://127.0.0.1:9/" }, "key": format!("k{n}"), "policy": { "backoff": { "fixed": "10ms" } } });
        server.json("POST", "/api/v1/tasks", &new);
    }
    let gates = || server.json("GET", "/api/v1/gates", &Value::Null).1["gates"].clone();
    while gates()[0]["state"] != "open" {
        std::thread::yield_now();
    }
    let open = gates();
    assert_eq!((&open[0]["name"], &open[0]["opens"]), (&json!("127.0.0.1:9"), &json!(1)), "{open}");
    let (status, held) = server.json(
        "POST",
        "/api/v1/tasks",
        &json!({ "http": { "url": "http://127.0.0.1:9/" }, "wait": true, "key": "k9" }),
    );
    assert!(
        status == 202 && held["error"].as_str().unwrap().starts_with("what it calls is down; it is held back until"),
        "not tried, but written down: {held}"
    );
    let act = |gate: &str, verb: &str, body: &Value| server.json("POST", &format!("/api/v1/gates/{gate}/{verb}"), body);
    assert_eq!(act("127.0.0.1:9", "hold", &json!({ "state": "closed" })).1["held"], "closed");
    assert_eq!(act("127.0.0.1:9", "reset", &Value::Null).1["state"], "closed");
    assert_eq!(act("http:example.org:443", "hold", &json!({ "state": "open", "note": "INC-7" })).1["why"], "INC-7");
    assert_eq!(act("http:example.org:443", "release", &Value::Null).1["name"], "example.org:443", "as it was held");
    assert_eq!(act("http:127.0.0.1:9", "reset", &Value::Null).1["name"], "127.0.0.1:9");
    assert_eq!(act("http:example.net:443", "reset", &Value::Null).0, 404, "it was never held");
    assert_eq!(act("saga.http:example.org:443", "hold", &json!({ "state": "open" })).1["held"], "open", "of its own");
    let (status, problem) = act("example.org:443", "release", &Value::Null);
    assert!(status == 422 && problem["detail"].as_str().unwrap().contains("saga.http:HOST:PORT"), "{problem}");
    assert_eq!(act("saga.http:example.org:443", "release", &Value::Null).1["held"], Value::Null);
    let (status, problem) = act("http:127.0.0.1", "hold", &json!({ "state": "open" }));
    assert!(status == 422 && problem["detail"].as_str().unwrap().contains("http:HOST:PORT"), "{problem}");
    assert_eq!(act("http", "hold", &json!({ "state": "open" })).0, 200, "a method that never had trouble");
    assert_eq!(
        (act("nothing", "reset", &Value::Null).0, act("nothing", "hold", &json!({ "state": "open" })).0),
        (404, 404)
    );
}
