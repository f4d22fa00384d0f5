//! Guarded tables as a service in any language meets them: a real server, a business table in each database, handlers over HTTP.

#[allow(dead_code, reason = "shared by several tests")]
mod support;

use std::sync::{Arc, Mutex};

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _};

use support::Server;

macro_rules! stores {
    ($($test:ident),* $(,)?) => {
        mod sqlite { $(#[tokio::test(flavor = "multi_thread")] async fn $test() { super::$test(super::sqlite_url().await).await; })* }
        mod postgres { $(#[tokio::test(flavor = "multi_thread")] async fn $test() { super::$test(super::postgres_url(stringify!($test)).await).await; })* }
        mod mysql { $(#[tokio::test(flavor = "multi_thread")] async fn $test() { super::$test(super::mysql_url(stringify!($test)).await).await; })* }
    };
}
stores!(
    a_row_is_retried_handed_to_people_and_closed,
    source_5_4_3_a_service_is_asked_before_a_persons_word_is_taken,
    one_that_is_wrong_says_so_and_the_others_go_on,
);

/// A business database of one's own.
struct Business {
    url: String,
    _dir: Option<tempfile::TempDir>,
}

async fn sqlite_url() -> Business {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}?mode=rwc", dir.path().join("shop.db").display());
    Business { url, _dir: Some(dir) }
}

fn server(variable: &str) -> String {
    std::env::var(variable)
        .unwrap_or_else(|_| panic!("{variable} is not set: run scripts/test, or leave this store out with --skip"))
}

async fn postgres_url(test: &str) -> Business {
    let (server, name) = (server("REDRIVE_TEST_POSTGRES"), format!("g{}_{}", std::process::id(), &test[..20]));
    execute(&server, &format!("DROP SCHEMA IF EXISTS {name} CASCADE; CREATE SCHEMA {name}")).await;
    Business { url: format!("{server}?options[search_path]={name}"), _dir: None }
}

async fn mysql_url(test: &str) -> Business {
    let (server, name) = (server("REDRIVE_TEST_MYSQL"), format!("g{}_{}", std::process::id(), &test[..20]));
    execute(&server, &format!("DROP DATABASE IF EXISTS {name}; CREATE DATABASE {name}")).await;
    Business { url: format!("{}/{name}", server.rsplit_once('/').unwrap().0), _dir: None }
}

async fn execute(url: &str, sql: &str) {
    let sql = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
    match url.split(':').next().unwrap() {
        "sqlite" => _ = sql.execute(&mut sqlx::SqliteConnection::connect(url).await.unwrap()).await.unwrap(),
        "mysql" | "mariadb" => _ = sql.execute(&mut sqlx::MySqlConnection::connect(url).await.unwrap()).await.unwrap(),
        _ => _ = sql.execute(&mut sqlx::PgConnection::connect(url).await.unwrap()).await.unwrap(),
    }
}

const TABLE: &str =
    "CREATE TABLE user_bill (id BIGINT PRIMARY KEY, user_id BIGINT NOT NULL, status VARCHAR(20) NOT NULL)";
const ROWS: &str = "INSERT INTO user_bill VALUES (10, 1000, 'FAIL'), (11, 1001, 'FAIL'), (12, 1002, 'FAIL')";

/// A service that can mend row 10 alone, and what it was asked.
#[derive(Clone, Default)]
struct Shop(Arc<Mutex<Vec<(String, i64)>>>);

impl Shop {
    async fn start(&self) -> u16 {
        let asked = |what: &'static str| {
            move |State(shop): State<Shop>, headers: HeaderMap, Json(body): Json<Value>| async move {
                assert!(headers.contains_key("webhook-signature") && headers["authorization"] == "Bearer of-the-shop");
                assert_eq!((&body["serviceName"], &body["table"]), (&json!("异常处理示例"), &json!("user_bill")));
                let id = body["dataId"].as_i64().unwrap();
                let mut all = shop.0.lock().unwrap();
                let mended = id == 10 && all.contains(&("handle".into(), 10));
                all.push((what.into(), id));
                Json(json!({ "code": 200, "msg": "ok", "data": if what == "check" { mended } else { id == 10 } }))
            }
        };
        let router = axum::Router::new()
            .route("/check", post(asked("check")))
            .route("/handle", post(asked("handle")))
            .route("/closed", post(closed))
            .with_state(self.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move { axum::serve(listener, router).await });
        port
    }

    fn asked(&self, id: i64) -> Vec<String> {
        self.0.lock().unwrap().iter().filter(|(_, of)| *of == id).map(|(what, _)| what.clone()).collect()
    }
}

/// A person says that a row is put right. Of row 11 the shop knows better.
async fn closed(State(shop): State<Shop>, Json(body): Json<Value>) -> StatusCode {
    let id = body["dataId"].as_i64().unwrap();
    shop.0.lock().unwrap().push(("closed".into(), id));
    if id == 11 { StatusCode::CONFLICT } else { StatusCode::NO_CONTENT }
}

impl Server {
    fn asked(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        self.asked_as(&self.token, method, path, body)
    }

    fn asked_as(&self, token: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = self.api_as(token, method, path, "", &body);
        (answer.status, answer.json())
    }

    /// A row, once its `err_status` is this.
    async fn row(&self, id: i64, err_status: i64) -> Value {
        for _ in 0..20_000 {
            let (_, shown) = self.asked("GET", &format!("/api/v1/guards/{SERVICE}/rows/{id}"), &Value::Null);
            if shown["row"]["err_status"] == err_status {
                return shown;
            }
        }
        panic!("row {id} does not become {err_status}");
    }
}

/// 异常处理示例
const SERVICE: &str = "%E5%BC%82%E5%B8%B8%E5%A4%84%E7%90%86%E7%A4%BA%E4%BE%8B";

fn settings(business: &Business, port: u16) -> String {
    format!(
        "[targets.shop]\nbase_url = 'http://127.0.0.1:{port}'\nallow_private = true\nheaders = {{ Authorization = 'Bearer of-the-shop' }}\n\
         signing_secret = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'\n\
         [guard]\nscan_interval = '1s'\n\
         [guards.bills]\ndatabase = '{}'\ntable = 'user_bill'\nservice_name = '异常处理示例'\nuser_field = 'user_id'\n\
         success_value = 'SUCCESS'\nfail_value = 'FAIL'\nmin_interval = '5s'\ntimeout = '180s'\nmax_retry_count = 1\n\
         target = 'shop'\ncheck_url = '/check'\nhandle_url = '/handle'\nmanual_success_route = '/api/user/admin/manual-bill-success'\n\
         comments = {{ id = '主键ID' }}\n",
        business.url
    )
}

async fn a_row_is_retried_handed_to_people_and_closed(business: Business) {
    execute(&business.url, TABLE).await;
    execute(&business.url, ROWS).await;
    let shop = Shop::default();
    let redrive = Server::start(&settings(&business, shop.start().await));
    let of = |what: &str| format!("/api/v1/guards/{SERVICE}/{what}");
    let marked = redrive.asked("POST", &of("mark-abnormal"), &json!({ "dataId": 10 }));
    assert_eq!(marked, (200, json!({ "changed": true, "detail": "marked as abnormal" })));
    let (_, marked) = redrive.asked("POST", &of("mark-abnormal"), &json!({ "dataId": "11", "user": 1001 }));
    assert_eq!(marked["changed"], true);
    for which in [json!({ "dataId": 11 }), json!({ "dataId": 99 }), json!({ "dataId": 12, "user": 1 })] {
        let (status, marked) = redrive.asked("POST", &of("mark-abnormal"), &which);
        assert_eq!((status, &marked["changed"]), (200, &json!(false)), "{which}");
    }

    assert_eq!(redrive.row(10, 2001).await["row"]["status"], "SUCCESS");
    assert_eq!(shop.asked(10), ["check", "handle", "check"]);
    let shown = redrive.row(11, 4001).await;
    assert_eq!((&shown["row"]["status"], &shown["row"]["err_retry_count"]), (&json!("FAIL"), &json!(1)));
    assert_eq!(shop.asked(11), ["check", "handle", "check"]);

    let (_, blocked) = redrive.asked("POST", &of("check-user"), &json!({ "user": 1001 }));
    assert_eq!((&blocked["blocked"], &blocked["rows"][0]["dataId"]), (&json!(true), &json!(11)));
    assert_eq!(redrive.asked("POST", &of("check-user"), &json!({ "user": 1000 })).1["blocked"], false);
    assert_eq!(redrive.asked("POST", &of("check-user"), &json!({ "user": [1] })).0, 422);
    viewers_see_no_rows(&redrive).await;
    let (_, audit) = redrive.asked("GET", "/api/v1/audit?action=guard.mark_abnormal", &Value::Null);
    let marked: Vec<_> = audit["audit"].as_array().unwrap().iter().map(|a| a["target"].as_str().unwrap()).collect();
    assert_eq!(marked, ["异常处理示例 11", "异常处理示例 10"], "who marked a row is known");

    let (status, list) = redrive.asked("POST", "/api/admin/abnormal/list", &json!({ "errStatus": 4001 }));
    assert_eq!(
        (status, &list["code"], &list["msg"], &list["data"]["total"]),
        (200, &json!(200), &json!("获取成功"), &json!(1))
    );
    assert_eq!(list["data"]["records"][0]["manualSuccessRoute"], "/api/user/admin/manual-bill-success");

    people_close_it(&redrive).await;
    assert_eq!(redrive.asked("POST", &of("check-user"), &json!({ "user": 1001 })).1["blocked"], false);
    let metrics = redrive.api_as(&redrive.token, "GET", "/metrics", "", "");
    assert!(metrics.has("redrive_guard"), "{}", metrics.body);
}

async fn viewers_see_no_rows(redrive: &Server) {
    let (viewer, _) = redrive.new_token("looks", redrive::store::Role::Viewer).await;
    let path = format!("/api/v1/guards/{SERVICE}/check-user");
    let (_, blocked) = redrive.asked_as(&viewer, "POST", &path, &json!({ "user": 1001 }));
    assert_eq!((&blocked["blocked"], &blocked["rows"]), (&json!(true), &json!([])));
    assert_eq!(blocked["detail"], "1 rows of the user are abnormal");
    let database =
        |token| redrive.asked_as(token, "GET", "/api/v1/guards", &Value::Null).1["guards"][0]["database"].clone();
    assert_eq!(database(&viewer), "");
    assert_ne!(database(&*redrive.token), "");
    let (status, checked) = redrive.asked_as(&viewer, "GET", &format!("/api/v1/guards/{SERVICE}/check"), &Value::Null);
    assert_eq!((status, &checked["usable"]), (200, &json!(true)), "{checked}");
}

/// Row 11 by the guard's own route, row 12 on the command line.
async fn people_close_it(redrive: &Server) {
    let route = "/api/user/admin/manual-bill-success";
    let (_, viewer) = redrive.asked("POST", "/api/v1/tokens", &json!({ "name": "v", "role": "viewer" }));
    let viewer = viewer["token"].as_str().or_else(|| viewer["secret"].as_str()).unwrap().to_owned();
    for (token, path, status) in [
        (viewer.as_str(), format!("{route}?dataId=11"), 403),
        ("rdr_nobody", format!("{route}?dataId=11"), 401),
        (redrive.token.as_str(), route.to_owned(), 400),
        (redrive.token.as_str(), format!("{route}?dataId=99"), 404),
    ] {
        let (answered, body) = redrive.asked_as(token, "POST", &path, &Value::Null);
        assert_eq!((answered, &body["code"], &body["data"]), (status, &json!(status), &Value::Null), "{path} {body}");
    }
    let closed = redrive.asked("POST", &format!("{route}?dataId=11"), &Value::Null);
    assert_eq!(closed, (200, json!({ "code": 200, "msg": "人工处理成功", "data": 11 })));
    let shown = redrive.row(11, 2002).await;
    assert_eq!((&shown["row"]["status"], &shown["row"]["err_submit_manual_status"]), (&json!("SUCCESS"), &json!(4002)));
    assert_eq!(shown["why"][0], "err_status is 2002, not 4000 or 4001");

    let (code, said) = redrive.cli(&["guard", "resolve", "异常处理示例", "12"]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = redrive.cli(&["guard", "show", "异常处理示例", "12"]);
    assert!(code == Some(0) && said.contains("2002") && said.contains("SUCCESS"), "{said}");
    let (code, said) = redrive.cli(&["guard", "ls"]);
    assert!(code == Some(0) && said.contains("user_bill"), "{said}");
    assert_eq!(redrive.cli(&["guard", "show", "nobody", "12"]).0, Some(3));
    let (_, audit) = redrive.asked("GET", "/api/v1/audit?action=guard.manual_success", &Value::Null);
    let outcomes = audit.to_string();
    assert!(outcomes.contains("异常处理示例 11") && outcomes.contains("异常处理示例 12"), "{outcomes}");
}

async fn source_5_4_3_a_service_is_asked_before_a_persons_word_is_taken(business: Business) {
    execute(&business.url, TABLE).await;
    execute(&business.url, ROWS).await;
    let shop = Shop::default();
    let settings = settings(&business, shop.start().await);
    let redrive =
        Server::start(&settings.replace("target = 'shop'", "target = 'shop'\nmanual_success_url = '/closed'"));
    let route = "/api/user/admin/manual-bill-success";
    let (status, refused) = redrive.asked("POST", &format!("{route}?dataId=11"), &Value::Null);
    assert_eq!((status, &refused["code"], &refused["data"]), (409, &json!(409), &Value::Null), "{refused}");
    let (_, shown) = redrive.asked("GET", &format!("/api/v1/guards/{SERVICE}/rows/11"), &Value::Null);
    assert_eq!((&shown["row"]["status"], &shown["row"]["err_status"]), (&json!("FAIL"), &Value::Null));
    let closed = redrive.asked("POST", &format!("{route}?dataId=12"), &Value::Null);
    assert_eq!(closed, (200, json!({ "code": 200, "msg": "人工处理成功", "data": 12 })));
    assert_eq!(redrive.row(12, 2002).await["row"]["status"], "SUCCESS");
    assert_eq!([11, 12].map(|id| shop.asked(id)), [["closed"], ["closed"]]);
}

async fn one_that_is_wrong_says_so_and_the_others_go_on(business: Business) {
    execute(&business.url, TABLE).await;
    execute(&business.url, ROWS).await;
    let shop = Shop::default();
    let mut toml = settings(&business, shop.start().await);
    for (name, change) in [("missing", ("user_bill", "no_such_table")), ("wrong", ("'user_id'", "'no_such_column'"))] {
        let whole = settings(&business, 1);
        let section = whole.split("[guards.bills]").nth(1).unwrap().replace(change.0, change.1);
        let section =
            section.replace("异常处理示例", name).replace("/api/user/admin/manual-bill-success", "/api/v1/tasks");
        toml += &format!("[guards.{name}]{section}");
    }
    let redrive = Server::start(&toml);
    let (_, listed) = redrive.asked("GET", "/api/v1/guards", &Value::Null);
    let trouble = |name: &str| {
        let all = listed["guards"].as_array().unwrap();
        all.iter().find(|guard| guard["service_name"] == name).unwrap()["trouble"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    assert!(trouble("missing").contains("no_such_table"), "{listed}");
    assert!(trouble("wrong").contains("no_such_column"), "{listed}");
    assert_eq!(trouble("异常处理示例"), "");
    viewers_are_not_told_why(&redrive).await;
    assert_eq!(redrive.asked("GET", "/api/v1/guards/missing/rows/1", &Value::Null).0, 503);
    assert_eq!(redrive.asked("GET", "/api/v1/guards/nobody/rows/1", &Value::Null).0, 404);
    let (code, said) = redrive.cli(&["guard", "check"]);
    assert!(code == Some(1) && said.contains("no_such_table") && said.contains("index"), "{said}");
    redrive.asked("POST", &format!("/api/v1/guards/{SERVICE}/mark-abnormal"), &json!({ "dataId": 10 }));
    redrive.row(10, 2001).await;
    assert_eq!(redrive.asked("GET", "/api/v1/tasks", &Value::Null).0, 200, "no guard takes a route of ours");
}

/// What is wrong with a database says where it is.
async fn viewers_are_not_told_why(redrive: &Server) {
    let (viewer, _) = redrive.new_token("looks", redrive::store::Role::Viewer).await;
    let (_, listed) = redrive.asked_as(&viewer, "GET", "/api/v1/guards", &Value::Null);
    let listed = listed.to_string();
    assert!(listed.contains("operators see why") && !listed.contains("no_such_column"), "{listed}");
    let (status, problem) =
        redrive.asked_as(&viewer, "POST", "/api/v1/guards/missing/check-user", &json!({ "user": 1 }));
    assert_eq!((status, &problem["code"]), (503, &json!("guard_broken")));
    assert_eq!(problem["detail"], "its database cannot be used; operators see why");
}

/// The guards' own routes have as much time as ours, and say so in their form.
#[tokio::test(flavor = "multi_thread")]
async fn a_business_database_that_hangs_keeps_nobody_waiting() {
    let business = sqlite_url().await;
    execute(&business.url, TABLE).await;
    let redrive = Server::start(&format!("[server]\nrequest_timeout = '500ms'\n{}", settings(&business, 1)));
    let list = || redrive.asked("POST", "/api/admin/abnormal/list", &json!({ "errStatus": 4001 }));
    assert_eq!(list().0, 200);
    let mut db = sqlx::SqliteConnection::connect(&business.url).await.unwrap();
    sqlx::query("BEGIN EXCLUSIVE").execute(&mut db).await.unwrap();
    let (status, answer) = list();
    assert_eq!((status, &answer["code"], &answer["data"]), (503, &json!(503), &Value::Null), "{answer}");
    assert!(answer["msg"].as_str().unwrap().contains("took too long"), "{answer}");
}
