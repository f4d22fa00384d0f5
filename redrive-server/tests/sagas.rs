//! Sagas over HTTP: a real server, real services, and what people do about them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

/// A service that answers as it was told, and remembers what it was asked.
#[derive(Clone, Default)]
struct Service(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    /// What is answered to a path, one after the other; the last one for ever.
    answers: BTreeMap<String, Vec<u16>>,
    asked: Vec<(String, Value)>,
    keys: Vec<String>,
}

impl Service {
    async fn start(&self) -> String {
        let router = axum::Router::new().fallback(answer).with_state(self.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        format!("http://{address}")
    }

    fn answers(&self, to: &str, statuses: &[u16]) {
        self.0.lock().unwrap().answers.insert(to.into(), statuses.to_vec());
    }

    /// `POST /hotel`, in order.
    fn asked(&self) -> Vec<String> {
        self.0.lock().unwrap().asked.iter().map(|(what, _)| what.clone()).collect()
    }

    fn body_of(&self, what: &str) -> Value {
        self.0.lock().unwrap().asked.iter().find(|(asked, _)| asked == what).unwrap().1.clone()
    }
}

async fn answer(State(service): State<Service>, method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let what = format!("{method} {}", uri.path());
    let mut inner = service.0.lock().unwrap();
    inner.asked.push((what.clone(), serde_json::from_slice(&body).unwrap_or_default()));
    inner.keys.push(headers["idempotency-key"].to_str().unwrap().to_owned());
    let status = match inner.answers.get_mut(&what) {
        Some(answers) if answers.len() > 1 => answers.remove(0),
        Some(answers) => answers[0],
        None => 200,
    };
    let status = StatusCode::from_u16(status).unwrap();
    let mut answer = (status, axum::Json(json!({ "id": inner.asked.len(), "key": inner.keys.last() }))).into_response();
    if status == StatusCode::ACCEPTED {
        answer.headers_mut().insert(header::LOCATION, "/jobs/7".parse().unwrap());
        answer.headers_mut().insert(header::RETRY_AFTER, "0".parse().unwrap());
    }
    answer
}

struct Redrive {
    child: Child,
    url: String,
    token: String,
    dir: tempfile::TempDir,
    client: reqwest::Client,
}

impl Drop for Redrive {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

impl Redrive {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let settings = "[http]\nallow = ['127.0.0.0/8']\ngate = { enabled = false }\n[defaults]\nbackoff = { fixed = '20ms' }\nmax_attempts = 3\njitter = 'none'\n";
        std::fs::write(dir.path().join("redrive.toml"), settings).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
        command.args(["serve", "--listen", "127.0.0.1:0"]).current_dir(dir.path()).env_remove("REDRIVE_DATABASE");
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let line = lines.find(|line| line.contains("API:")).unwrap();
        let url = line.split_whitespace().nth(1).unwrap().trim_end_matches("/api/v1").to_owned();
        let line = lines.find(|line| line.contains("token:")).unwrap();
        let token = line.split_whitespace().nth(1).unwrap().to_owned();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let tls = tls.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
        let client = reqwest::Client::builder().tls_backend_preconfigured(tls).no_proxy().build().unwrap();
        Self { child, url, token, dir, client }
    }

    async fn ask_as(&self, token: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let request =
            self.client.request(method.parse().unwrap(), format!("{}/api/v1{path}", self.url)).bearer_auth(token);
        answered(if body.is_null() { request } else { request.body(body.to_string()) }).await
    }

    /// A body that need not be JSON.
    async fn send(&self, method: &str, path: &str, body: String) -> (u16, Value) {
        let request = self.client.request(method.parse().unwrap(), format!("{}/api/v1{path}", self.url));
        answered(request.bearer_auth(&self.token).body(body)).await
    }

    /// The lines that come of acting on many.
    async fn act_on_many(&self, body: &Value) -> Vec<Value> {
        let request = self.client.post(format!("{}/api/v1/sagas/actions", self.url)).bearer_auth(&self.token);
        let text = request.body(body.to_string()).send().await.unwrap().text().await.unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    async fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        self.ask_as(&self.token, method, path, body).await
    }

    /// The saga, once it stands so.
    async fn until(&self, id: &str, state: &str) -> Value {
        let mut last = Value::Null;
        for _ in 0..20_000 {
            last = self.ask("GET", &format!("/sagas/{id}"), &Value::Null).await.1;
            if last["state"] == state {
                return last;
            }
        }
        panic!("{id} does not become {state}: {last:#}");
    }

    fn cli(&self, args: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
        command.args(args).args(["--server", &self.url]).env("REDRIVE_TOKEN", &self.token).env("NO_PROXY", "127.0.0.1");
        let said = command.current_dir(self.dir.path()).output().unwrap();
        (said.status.code(), String::from_utf8([said.stdout, said.stderr].concat()).unwrap())
    }
}

/// Of a line of a list.
fn id_of(line: &str) -> String {
    let saga: Value = serde_json::from_str(line).unwrap();
    saga["id"].as_str().unwrap().to_owned()
}

async fn answered(request: reqwest::RequestBuilder) -> (u16, Value) {
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    (status, serde_json::from_str(&answer.text().await.unwrap()).unwrap_or_default())
}

/// The travel example: hotel, then flight, then a mail.
fn trip(at: &str) -> Value {
    json!({
        "name": "book-trip",
        "steps": [
            { "name": "hotel",
              "do": { "url": format!("{at}/hotel"), "body": { "guest": "{{input.who}}", "nights": "{{input.nights}}" } },
              "undo": { "method": "DELETE", "url": format!("{at}/hotel/{{{{self.body.id | run_key}}}}") } },
            { "name": "flight", "after": ["hotel"],
              "do": { "url": format!("{at}/flight"), "body": { "hotel": "{{steps.hotel.body.id}}" } },
              "undo": { "method": "DELETE", "url": format!("{at}/flight/{{{{self.body.id | run_key}}}}") },
              "undo_policy": { "max_attempts": 2, "backoff": { "fixed": "20ms" } } },
            { "name": "mail", "after": ["flight"], "undo": "none",
              "do": { "url": format!("{at}/mail"), "body": "to {{input.who}}: {{steps.flight.body.id}}" } }
        ]
    })
}

fn new(id: &str, at: &str) -> Value {
    json!({ "id": id, "input": { "who": "Ada", "nights": 3 }, "saga": trip(at) })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trip_is_booked_or_given_back() {
    let (service, redrive) = (Service::default(), Redrive::start());
    let at = service.start().await;
    service.answers("POST /flight", &[503, 429, 201]);
    assert_eq!(redrive.ask("POST", "/sagas", &new("t1", &at)).await, (201, json!({ "id": "t1", "existed": false })));
    let done = redrive.until("t1", "succeeded").await;
    assert_eq!(service.asked(), ["POST /hotel", "POST /flight", "POST /flight", "POST /flight", "POST /mail"]);
    assert_eq!(service.body_of("POST /hotel"), json!({ "guest": "Ada", "nights": 3 }));
    assert_eq!(service.body_of("POST /flight"), json!({ "hotel": 1 }));
    assert_eq!(service.0.lock().unwrap().keys[1..4], ["t1/flight/run"; 3].map(String::from));
    assert_eq!(done["steps"][1]["state"], "done");
    assert_eq!(redrive.ask("POST", "/sagas", &new("t1", &at)).await, (200, json!({ "id": "t1", "existed": true })));
    let (_, audit) = redrive.ask("GET", "/audit?action=saga.start", &Value::Null).await;
    let started: Vec<_> = audit["audit"].as_array().unwrap().iter().map(|a| (&a["who"], &a["target"])).collect();
    assert_eq!(started, [(&json!("admin"), &json!("t1"))]);
    let mut other = new("t1", &at);
    other["input"]["who"] = "Eve".into();
    assert_eq!(redrive.ask("POST", "/sagas", &other).await.0, 409);

    // No mail, so both bookings are given back, the last one first; a 404 says that it is gone.
    let (service, at) = (Service::default(), String::new());
    let at = if at.is_empty() { service.start().await } else { at };
    service.answers("POST /mail", &[400]);
    service.answers("DELETE /flight/2", &[404]);
    redrive.ask("POST", "/sagas", &new("t2", &at)).await;
    let undone = redrive.until("t2", "compensated").await;
    assert_eq!(service.asked(), ["POST /hotel", "POST /flight", "POST /mail", "DELETE /flight/2", "DELETE /hotel/1"]);
    let states: Vec<&str> = undone["steps"].as_array().unwrap().iter().map(|s| s["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["undone", "undone", "refused"]);

    // No answer from the flight, ever: it is not known whether it is booked, so it is undone by its key.
    let service = Service::default();
    let at = service.start().await;
    service.answers("POST /flight", &[500]);
    redrive.ask("POST", "/sagas", &new("t3", &at)).await;
    redrive.until("t3", "compensated").await;
    let asked = service.asked();
    assert_eq!(asked[1..4], ["POST /flight"; 3].map(String::from));
    assert_eq!(asked[4..], ["DELETE /flight/t3%2Fflight%2Frun".to_owned(), "DELETE /hotel/1".into()]);
}

/// A service that was told the key in a body finds by it what it was sent under the key of a header, whatever the saga's id is.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_the_same_in_a_template_and_in_the_header() {
    let (service, redrive) = (Service::default(), Redrive::start());
    let at = service.start().await;
    let run = json!({ "url": format!("{at}/book"), "body": { "key": "{{key}}" } });
    let saga = json!({ "name": "book", "steps": [{ "name": "book", "do": run, "undo": "none" }] });
    redrive.ask("POST", "/sagas", &json!({ "id": "旅行 7%", "saga": saga })).await;
    redrive.until("%E6%97%85%E8%A1%8C%207%25", "succeeded").await;
    let header = service.0.lock().unwrap().keys[0].clone();
    assert_eq!(header, "%E6%97%85%E8%A1%8C 7%25/book/run");
    assert_eq!(service.body_of("POST /book"), json!({ "key": header }));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_under_way_is_asked_for_and_a_signal_is_waited_for() {
    let (service, redrive) = (Service::default(), Redrive::start());
    let at = service.start().await;
    service.answers("POST /order", &[202]);
    service.answers("GET /jobs/7", &[202, 425, 200]);
    let saga = json!({ "name": "order", "steps": [
        { "name": "order", "do": { "url": format!("{at}/order") }, "undo": "none" },
        { "name": "approval", "after": ["order"], "kind": { "wait_for": { "signal": "approved" } } },
        { "name": "ship", "after": ["approval"], "pivot": true, "do": { "url": format!("{at}/ship"), "body": { "by": "{{steps.approval.by}}" } } }
    ]});
    assert_eq!(redrive.ask("POST", "/sagas", &json!({ "id": "o1", "saga": saga })).await.0, 201);
    redrive.until("o1", "waiting").await;
    assert_eq!(service.asked(), ["POST /order", "GET /jobs/7", "GET /jobs/7", "GET /jobs/7"]);
    let signal = ["saga", "signal", "o1", "approved", r#"{"by": "Bob"}"#, "--key", "mail-17"];
    let (code, said) = redrive.cli(&signal);
    assert_eq!(code, Some(0), "{said}");
    redrive.until("o1", "succeeded").await;
    assert_eq!(service.body_of("POST /ship"), json!({ "by": "Bob" }));

    // Said again it is accepted as before, though the saga has ended; something else under that key is a conflict.
    assert_eq!(redrive.cli(&signal).0, Some(0));
    let again = |by: &str| json!({ "signal": "approved", "payload": { "by": by }, "key": "mail-17" });
    assert_eq!(redrive.ask("POST", "/sagas/o1/signals", &again("Bob")).await.0, 204);
    let (status, problem) = redrive.ask("POST", "/sagas/o1/signals", &again("Eve")).await;
    assert!(status == 409 && problem.to_string().contains("under this key"), "{status} {problem}");
    let (status, problem) = redrive.ask("POST", "/sagas/o1/signals", &json!({ "signal": "approved", "key": "" })).await;
    assert!(status == 422 && problem.to_string().contains("key"), "{status} {problem}");
    let (_, audit) = redrive.ask("GET", "/audit?action=saga.signal", &Value::Null).await;
    let [entry] = audit["audit"].as_array().unwrap().as_slice() else { panic!("one entry: {audit}") };
    assert_eq!((&entry["target"], &entry["after"]["signal"]), (&json!("o1"), &json!("approved")));
    assert!(!audit.to_string().contains("Bob"), "what was said may be a secret: {audit}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_keeps_failing_says_so() {
    let (service, redrive) = (Service::default(), Redrive::start());
    let at = service.start().await;
    service.answers("POST /hotel", &[503]);
    let mut new = new("f1", &at);
    new["saga"]["deadline"] = "3h".into();
    new["saga"]["steps"][0]["policy"] = json!({ "max_attempts": 3, "backoff": { "fixed": "1h" }, "jitter": "none" });
    // A service's own, about a business of the same name: it is none of the saga's.
    let work = json!({ "saga": "f1", "step": "hotel", "op": "run" });
    let own =
        json!({ "method": "charge", "delay": "1h", "business_type": "saga", "business_id": "f1", "params": work });
    assert_eq!(redrive.ask("POST", "/tasks", &own).await.0, 201);
    assert_eq!(redrive.ask("POST", "/sagas", &new).await.0, 201);
    let mut saga = Value::Null;
    while saga["steps"][0]["attempts"] != 1 {
        saga = redrive.ask("GET", "/sagas/f1", &Value::Null).await.1;
    }
    let hotel = &saga["steps"][0];
    assert!(hotel["next_at"].is_string() && hotel["error"].as_str().unwrap().starts_with("503"), "{saga:#}");
    assert!(saga["deadline"].is_string() && saga["deadline"] == saga["look_at"], "{saga:#}");
    assert_eq!(saga["steps"][1].get("attempts"), None);
    let edit = json!({ "action": "edit_input", "input": new["input"] });
    let (_, acted) = redrive.ask("POST", "/sagas/f1/actions", &edit).await;
    assert_eq!(acted["steps"][0], *hotel, "whoever acts sees the same");
    let (_, said) = redrive.cli(&["saga", "show", "f1"]);
    assert!(said.contains("1 attempt failed, next in ") && said.contains(", 503 Service Unavailable"), "{said}");
    assert!(said.contains("\ndeadline ") && !said.contains("goes on"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_input_that_holds_is_shown_and_has_what_steps_ask_for() {
    let redrive = Redrive::start();
    let steps = json!([
        { "name": "go", "kind": { "wait_for": { "signal": "go" } } },
        { "name": "mail", "after": ["go"], "do": { "url": "http://127.0.0.1:9/{{input.who}}" }, "undo": "none" }
    ]);
    let new = json!({ "id": "e1", "input": { "who": "Ada" }, "saga": { "name": "n", "steps": steps } });
    assert_eq!(redrive.ask("POST", "/sagas", &new).await.0, 201);
    let edit = |input: Value| json!({ "action": "edit_input", "input": input });
    let (status, problem) = redrive.ask("POST", "/sagas/e1/actions", &edit(json!({ "whom": "Eve" }))).await;
    assert!(status == 422 && problem["detail"].as_str().unwrap().contains("mail asks for input.who"), "{problem}");
    let (_, saga) = redrive.ask("POST", "/sagas/e1/actions", &edit(json!({ "who": "Eve" }))).await;
    assert_eq!(
        (&saga["input"], &saga["started_with"]),
        (&json!({ "who": "Eve" }), &json!({ "who": "Ada" })),
        "{saga:#}"
    );
    let (_, said) = redrive.cli(&["saga", "show", "e1"]);
    assert!(said.contains(r#"{"who":"Eve"}"#) && said.contains(r#"{"who":"Ada"}"#), "{said}");
    let (_, said) = redrive.cli(&["saga", "cancel", "e1", "--dry-run"]);
    assert_eq!(said, "e1: would be cancelled\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_have_happened_is_not_called_refused() {
    let (service, redrive) = (Service::default(), Redrive::start());
    let at = service.start().await;
    // The first request was done and its answer lost; the second is told that there is one already.
    service.answers("POST /flight", &[500, 409]);
    redrive.ask("POST", "/sagas", &new("r1", &at)).await;
    redrive.until("r1", "compensated").await;
    assert!(service.asked().contains(&"DELETE /flight/r1%2Fflight%2Frun".into()), "{:?}", service.asked());

    // A job was taken, and nobody may look at it. Its undo is taken as well, and lost once.
    let service = Service::default();
    let at = service.start().await;
    service.answers("POST /hotel", &[202]);
    service.answers("GET /jobs/7", &[401, 404, 200]);
    service.answers("DELETE /hotel/r2%2Fhotel%2Frun", &[202]);
    redrive.ask("POST", "/sagas", &new("r2", &at)).await;
    redrive.until("r2", "compensated").await;
    let (hotel, job, undo) = ("POST /hotel", "GET /jobs/7", "DELETE /hotel/r2%2Fhotel%2Frun");
    assert_eq!(service.asked(), [hotel, job, undo, job, undo, job]);

    // Nobody says how a payment is undone: if it is not known whether it happened, that is for a person.
    let service = Service::default();
    let at = service.start().await;
    service.answers("POST /pay", &[500]);
    let pay = json!({ "name": "pay", "pivot": true, "do": { "url": format!("{at}/pay") } });
    redrive.ask("POST", "/sagas", &json!({ "id": "r3", "saga": { "name": "n", "steps": [pay] } })).await;
    redrive.until("r3", "stuck").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_changes_neither_where_a_request_goes_nor_what_it_says() {
    let (service, redrive) = (Service::default(), Redrive::start());
    let at = service.start().await;
    let steps = json!([
        { "name": "a", "do": { "url": format!("{at}/a/{{{{input.id}}}}/cancel"), "headers": { "x-who": "{{input.who}}" } },
          "undo": "none" }
    ]);
    for (n, (input, said)) in [
        (json!({ "id": "..", "who": "Ada" }), "in an address"),
        (json!({ "id": "", "who": "Ada" }), "in an address"),
        (json!({ "id": "7", "who": "Ada\nx: y" }), "header x-who"),
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("v{n}");
        let saga = json!({ "id": id, "input": input, "saga": { "name": "n", "steps": steps } });
        assert_eq!(redrive.ask("POST", "/sagas", &saga).await.0, 201);
        let ended = redrive.until(&id, "failed").await;
        assert!(ended["steps"][0]["error"].as_str().unwrap().contains(said), "{ended:#}");
    }
    assert_eq!(service.asked(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_a_step_is_redrive_s_to_set() {
    let redrive = Redrive::start();
    let asks = json!({ "url": "https://h.example.org/a", "headers": { "Idempotency-KEY": "mine" } });
    let steps = json!([{ "name": "a", "do": asks, "undo": asks }]);
    let (status, problem) =
        redrive.ask("POST", "/sagas", &json!({ "id": "k", "saga": { "name": "n", "steps": steps } })).await;
    let wrong: Vec<_> =
        problem["errors"].as_array().unwrap().iter().map(|wrong| wrong["field"].as_str().unwrap()).collect();
    assert_eq!(status, 422);
    assert_eq!(
        wrong,
        ["do", "undo"].map(|what| format!("saga.steps[0].{what}.headers.Idempotency-KEY")),
        "{problem:#}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_large_with_its_values_is_refused_and_not_sent() {
    let (service, redrive) = (Service::default(), Redrive::start());
    let at = service.start().await;
    let (text, times) = ("x".repeat(100_000), vec!["{{input.text}}"; 20_000]);
    for (id, asks, said) in [
        ("body", json!({ "url": format!("{at}/a"), "body": times }), "more than 1048576 bytes"),
        (
            "escaped",
            json!({ "url": format!("{at}/a"), "body": ["{{input.quotes}}", "{{input.quotes}}"] }),
            "the limit is 1048576",
        ),
        ("url", json!({ "url": format!("{at}/a/{{{{input.text}}}}") }), "the limit is 8192"),
        ("headers", json!({ "url": format!("{at}/a"), "headers": { "x-a": "{{input.text}}" } }), "and 32768"),
    ] {
        let steps = json!([{ "name": "a", "do": asks, "undo": "none" }]);
        let input = json!({ "text": text, "quotes": "\"".repeat(300_000) });
        let saga = json!({ "id": id, "input": input, "saga": { "name": "n", "steps": steps } });
        let (status, problem) = redrive.ask("POST", "/sagas", &saga).await;
        assert_eq!(status, 201, "{problem}");
        let ended = redrive.until(id, "failed").await;
        assert!(ended["steps"][0]["error"].as_str().unwrap().contains(said), "{id}: {ended:#}");
    }
    assert_eq!(service.asked(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_whose_time_is_up_is_not_shown_as_done() {
    let redrive = Redrive::start();
    let wait = json!({ "name": "approval", "kind": { "wait_for": { "signal": "approved", "timeout": "50ms" } } });
    let saga = json!({ "name": "order", "steps": [wait] });
    assert_eq!(redrive.ask("POST", "/sagas", &json!({ "id": "o1", "saga": saga })).await.0, 201);
    let ended = redrive.until("o1", "failed").await;
    assert_eq!((&ended["steps"][0]["state"], &ended["steps"][0]["error"]), (&json!("refused"), &json!("time is up")));
    assert!(ended["steps"][0]["changed_at"].is_string(), "{ended:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stuck_saga_is_seen_to_by_people() {
    let (service, redrive) = (Service::default(), Redrive::start());
    let at = service.start().await;
    service.answers("POST /mail", &[400]);
    for n in 1..30 {
        service.answers(&format!("DELETE /flight/{n}"), &[500]);
    }
    for id in ["s1", "s2"] {
        redrive.ask("POST", "/sagas", &new(id, &at)).await;
        redrive.until(id, "stuck").await;
    }
    let (_, listed) = redrive.ask("GET", "/sagas?state=stuck", &Value::Null).await;
    assert_eq!(listed["sagas"].as_array().unwrap().len(), 2);
    let (code, said) = redrive.cli(&["saga", "show", "s1", "--journal"]);
    assert!(code == Some(0) && said.contains("✗ flight: undo failed") && said.contains("rollback"), "{said}");

    // One undo is said to be done, the other left out: that is a gap.
    let (code, said) = redrive.cli(&["saga", "resolve", "flight", "s1", "--note", "by phone"]);
    assert_eq!(code, Some(0), "{said}");
    redrive.until("s1", "compensated").await;
    assert_eq!(redrive.cli(&["saga", "skip", "flight", "s2"]).0, Some(0));
    redrive.until("s2", "compensated_with_gaps").await;
    let (_, audit) = redrive.ask("GET", "/audit?action=saga.", &Value::Null).await;
    assert!(audit.to_string().contains("by phone") && audit.to_string().contains("saga.skip"), "{audit}");

    // A third one is retried after the service is well again.
    redrive.ask("POST", "/sagas", &new("s3", &at)).await;
    redrive.until("s3", "stuck").await;
    let stuck = service.asked().iter().rfind(|asked| asked.starts_with("DELETE /flight")).unwrap().clone();
    service.answers(&stuck, &[200]);
    let (code, said) = redrive.cli(&["saga", "retry", "--all-of-state", "stuck", "--yes"]);
    assert_eq!(code, Some(0), "{said}");
    redrive.until("s3", "compensated").await;
    let (code, said) = redrive.cli(&["saga", "kill", "s3"]);
    assert!(code == Some(1) && said.contains("ended"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn viewers_see_no_values_and_change_nothing() {
    let (service, redrive) = (Service::default(), Redrive::start());
    let at = service.start().await;
    redrive.ask("POST", "/sagas", &new("v1", &at)).await;
    redrive.until("v1", "succeeded").await;
    let (_, viewer) = redrive.ask("POST", "/tokens", &json!({ "name": "v", "role": "viewer" })).await;
    let viewer = viewer["token"].as_str().or_else(|| viewer["secret"].as_str()).unwrap();
    let (status, seen) = redrive.ask_as(viewer, "GET", "/sagas/v1", &Value::Null).await;
    assert_eq!((status, &seen["input"], &seen["steps"][0]["output"]), (200, &json!("***"), &json!("***")));
    for secret in ["Ada", "127.0.0.1"] {
        assert!(!seen.to_string().contains(secret), "{secret} in {seen:#}");
    }
    for (path, body) in [("/sagas", new("v2", &at)), ("/sagas/v1/actions", json!({ "action": "kill" }))] {
        assert_eq!(redrive.ask_as(viewer, "POST", path, &body).await.0, 403);
    }
}

/// A step that is fine but for what is said of it.
fn step(name: &str, more: Value) -> Value {
    let mut step = json!({ "name": name, "do": { "url": "https://example.org/x" }, "undo": "none" });
    let Value::Object(more) = more else { panic!("not an object") };
    step.as_object_mut().unwrap().extend(more);
    step
}

fn url(url: &str) -> Value {
    json!({ "do": { "url": url } })
}

/// Steps that cannot be, and what is said of them.
fn wrong_steps() -> Vec<(Value, &'static str)> {
    vec![
        (json!([]), "saga.steps: must be from 1 to 100"),
        (json!(vec![step("a", json!({})); 101]), "saga.steps: must be from 1 to 100, are 101"),
        (json!(vec![7; 100_000]), "saga.steps: must be from 1 to 100, are 100000"),
        (json!([step(&"a".repeat(91), json!({}))]), "saga.steps[0].name: must be of 1 to 90 bytes"),
        (json!([step("a", json!({})), step("a", json!({}))]), "saga.steps[1].name"),
        (json!([step("a", json!({ "after": ["x"] }))]), "saga.steps[0].after: there is no step \"x\""),
        (
            json!([step("a", json!({ "after": ["b"] })), step("b", json!({ "after": ["a"] }))]),
            "saga.steps: some wait for each other in a circle",
        ),
        (json!([{ "name": "w", "kind": { "wait_for": { "signal": "x", "timeot": "1s" } } }]), "timeot"),
        (json!([{ "name": "w", "kind": { "sleep": { "time": "1s", "until": 7 } } }]), "until"),
        (json!([step("a", json!({ "policy": { "max_attemps": 3 } }))]), "max_attemps"),
        (
            json!([step("a", json!({ "do": { "url": "https://example.org/x", "boby": 1 } }))]),
            "saga.steps[0].do: unknown field `boby`",
        ),
        (json!([step("a", url("https://example.org/{{input.nobody}}"))]), "saga.steps[0].do: there is no input.nobody"),
        (json!([step("a", url("https://example.org/{{input.x | input.y}}"))]), "there is no input.x, nor input.y"),
        (json!([step("a", url("https://example.org/{{steps.b}}"))]), "saga.steps[0].do: steps.b is not a step before"),
        (json!([step("a", url("https://example.org/{{nothing}}"))]), "saga.steps[0].do: \"nothing\" is none of"),
        (
            json!([step("a", json!({ "undo": { "url": "https://example.org/{{self.body" } }))]),
            "saga.steps[0].undo: has {{ without }}",
        ),
        (json!([step("a", json!({ "undo": null }))]), "must say how that is undone"),
        (json!([step("a", url("https://example.org/{{steps.b.body}}")), step("b", json!({}))]), "not a step before"),
        (json!([step("a", url("https://example.org/{{self.body}}"))]), "undo and confirm alone"),
        (json!([step("a", url("https://{{input.host}}/x"))]), "host"),
        (json!([step("a", url("https:{{key}}/x"))]), "no template can be in the host"),
        (json!([step("a", url("https:///{{key}}/x"))]), "no template can be in the host"),
        (json!([step("a", url("http://10.0.0.1/x"))]), "private"),
        (json!([step("a", url("ftp://example.org/x"))]), "https://"),
        (json!([step("a", json!({ "do": { "url": "/x", "target": "nobody" } }))]), "nobody"),
        (json!([step("a", json!({ "spec": 1 }))]), "belongs into"),
        (json!([step("a", json!({ "kind": { "sleep": { "time": "1s" } } }))]), "only waits"),
        (
            json!([step(
                "a",
                json!({ "kind": { "reserve": { "ttl": "1m" } }, "undo": { "url": "https://example.org/u" } })
            )]),
            "confirmed",
        ),
        (json!([{ "name": "a", "undoo": 1 }]), "undoo"),
        (json!([7]), "object"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn all_that_is_wrong_is_said_when_it_is_submitted() {
    let redrive = Redrive::start();
    for (steps, said) in wrong_steps() {
        let saga = json!({ "id": "x", "saga": { "name": "n", "steps": steps } });
        let (status, problem) = redrive.ask("POST", "/sagas", &saga).await;
        assert!(status == 422 && problem["detail"].as_str().unwrap().contains(said), "{said}: {status} {problem}");
    }
    for saga in [json!(7), json!({}), json!({ "name": "n" })] {
        assert_eq!(redrive.ask("POST", "/sagas", &json!({ "id": "x", "saga": saga })).await.0, 422);
    }
    let fine = json!({ "name": "n", "steps": [step("a", url("https://example.org/{{input.x | key}}"))] });
    for (id, input, said) in [
        ("", json!(1), "id: must be of 1 to 100 bytes"),
        (&*"x".repeat(101), json!(1), "id: must be of 1 to 100 bytes"),
        ("a\0b", json!(1), "without NUL"),
        ("x", json!("x".repeat(1 << 20)), "input: is 1048578 bytes, the limit is"),
        ("x", (0..110).fold(json!(1), |inner, _| json!([inner])), "input: is nested deeper than 100"),
    ] {
        let (status, problem) = redrive.ask("POST", "/sagas", &json!({ "id": id, "input": input, "saga": fine })).await;
        assert!(status == 422 && problem["detail"].as_str().unwrap().contains(said), "{said}: {status} {problem}");
    }
    let deep = format!(r#"{{"id":"x","input":{}1{}}}"#, "[".repeat(200), "]".repeat(200));
    assert_eq!(redrive.send("POST", "/sagas", deep).await.0, 400, "no reader of JSON goes that deep");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_done_is_said_before_anything_is() {
    let redrive = Redrive::start();
    for (act, said) in [
        (json!({ "action": "kill", "note": "x".repeat(1_001) }), "note: "),
        (json!({ "action": "skip" }), "step: must be given"),
        (json!({ "action": "resolve", "output": 1 }), "step: must be given"),
        (json!({ "action": "edit_input" }), "input: must be given"),
    ] {
        let (status, problem) =
            redrive.ask("POST", "/sagas/actions", &json!({ "ids": ["x"], "act": act.clone() })).await;
        assert!(status == 422 && problem["detail"].as_str().unwrap().contains(said), "{said}: {status} {problem}");
        assert_eq!(redrive.ask("POST", "/sagas/x/actions", &act).await.0, 422);
    }
    let nobody = json!({ "ids": ["a\0b", "nobody"], "act": { "action": "retry" } });
    let many = redrive.act_on_many(&nobody).await;
    let problem = |i: usize| many[i]["problem"].as_str().unwrap().to_owned();
    assert!(problem(0).contains("no saga") && problem(1).contains("no saga"), "{many:?}");
    assert_eq!(many[2], json!({ "state": "finished", "done": 0, "failed": 2 }));
    for (which, field) in [
        (json!({ "state": "killed" }), "state"),
        (json!({}), "ids"),
        (json!({ "ids": ["x"], "name": "n" }), "ids"),
        (json!({ "ids": vec!["x"; 1_001] }), "ids"),
        (json!({ "name": "a\0b" }), "name"),
    ] {
        let mut body = json!({ "act": { "action": "retry" } });
        body.as_object_mut().unwrap().extend(which.as_object().unwrap().clone());
        let (status, problem) = redrive.ask("POST", "/sagas/actions", &body).await;
        assert_eq!((status, &problem["errors"][0]["field"]), (422, &json!(field)), "{which}: {problem}");
    }
    assert_eq!(redrive.ask("GET", "/sagas/nobody", &Value::Null).await.0, 404);
    assert_eq!(redrive.ask("GET", "/sagas?after=x", &Value::Null).await.0, 422);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_are_reached_however_many_there_are_and_however_old() {
    let redrive = Redrive::start();
    let saga = json!({ "name": "hold", "steps": [{ "name": "wait", "kind": { "wait_for": { "signal": "go" } } }] });
    let start = async |id: String| redrive.ask("POST", "/sagas", &json!({ "id": id, "saga": saga })).await.0;
    assert_eq!(start("old".into()).await, 201);
    let others: Vec<String> = (0..1_100).map(|n| format!("s{n}")).collect();
    for some in others.chunks(50) {
        let started = futures_util::future::join_all(some.iter().map(|id| start(id.clone()))).await;
        assert!(started.iter().all(|status| *status == 201), "{started:?}");
    }
    for id in others.iter().chain([&"old".to_owned()]) {
        redrive.until(id, "waiting").await;
    }

    // A list says that there may be more; all of them come page by page.
    let (code, said) = redrive.cli(&["saga", "ls", "--limit", "3"]);
    assert!(code == Some(0) && said.matches("\n| s").count() == 3 && said.contains("--all"), "{said}");
    for all in [&["--all"][..], &["--limit", "5000"], &["--all", "--state", "waiting"]] {
        let (code, said) = redrive.cli(&[&["saga", "ls", "--json"], all].concat());
        let listed: BTreeSet<String> = said.lines().map(id_of).collect();
        assert_eq!((code, listed.len(), said.lines().count()), (Some(0), 1_101, 1_101), "{all:?}");
    }
    assert_eq!(redrive.cli(&["saga", "ls", "--limit", "0"]).0, Some(2));

    // Nobody was asked, so nothing is done.
    let (code, said) = redrive.cli(&["saga", "kill", "--all-of-state", "waiting"]);
    assert!(code == Some(2) && said.contains("kill 1,101 sagas") && said.contains("--yes"), "{said}");
    let act = json!({ "action": "kill" });
    let would = redrive.act_on_many(&json!({ "state": "waiting", "dry_run": true, "act": act })).await;
    assert_eq!((would.len(), &would[0]["state"], &would[1_101]["done"]), (1_102, &json!("would_be"), &json!(0)));

    // The newest have ended: the old one is behind more of them than a page has.
    for some in others.chunks(1_000) {
        let killed = redrive.act_on_many(&json!({ "ids": some, "act": act })).await;
        assert_eq!(killed.last().unwrap()["done"], some.len());
    }
    let (code, said) = redrive.cli(&["saga", "kill", "--all-of-name", "hold", "--yes"]);
    assert_eq!((code, &*said), (Some(0), "old: done\n"));
    redrive.until("old", "killed").await;
    let (code, said) = redrive.cli(&["saga", "kill", "--all-of-name", "hold"]);
    assert_eq!((code, &*said), (Some(0), "there are none\n"));
}
