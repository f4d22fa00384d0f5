//! Every word of every page, in English and Chinese. `{0}`, `{1}` are what [`fill`] puts in. Both languages have every word, or it
//! does not compile; a word that nobody uses is a warning.

use std::fmt::Display;

use axum::http::HeaderValue;

/// A language of the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lang {
    En,
    Zh,
}

impl Lang {
    /// As a person has chosen, else the first that their browser asks for and we have.
    pub(super) fn of(chosen: Option<&str>, accepted: Option<&HeaderValue>) -> Self {
        let accepted = accepted.and_then(|value| value.to_str().ok()).unwrap_or_default();
        let mut wanted: Vec<(&str, f32)> = accepted.split(',').map(weighed).collect();
        wanted.sort_by(|(_, a), (_, b)| b.total_cmp(a)); // a stable sort: among equals the first
        let accepted = wanted.iter().find_map(|(tag, weight)| Self::named(tag).filter(|_| *weight > 0.0));
        chosen.and_then(Self::named).or(accepted).unwrap_or(Self::En)
    }

    /// By its tag: `zh`, `zh-CN`, `en-GB`.
    pub(super) fn named(tag: &str) -> Option<Self> {
        match tag.split('-').next().unwrap_or_default().trim().to_ascii_lowercase().as_str() {
            "en" => Some(Self::En),
            "zh" => Some(Self::Zh),
            _ => None,
        }
    }

    /// As cookies have it.
    pub(super) fn code(self) -> &'static str {
        match self {
            Self::En => "en",
            Self::Zh => "zh",
        }
    }

    /// As HTML has it.
    pub(crate) fn tag(self) -> &'static str {
        match self {
            Self::En => "en",
            Self::Zh => "zh-CN",
        }
    }

    pub(crate) fn words(self) -> &'static Words {
        match self {
            Self::En => &EN,
            Self::Zh => &ZH,
        }
    }
}

/// A language and how much it is wanted: `zh;q=0.8`.
fn weighed(part: &str) -> (&str, f32) {
    let (tag, weight) = part.split_once(';').unwrap_or((part, "q=1"));
    (tag.trim(), weight.trim().strip_prefix("q=").and_then(|q| q.parse().ok()).unwrap_or(1.0))
}

/// A text with its gaps filled.
pub(crate) fn fill(text: &str, with: &[&dyn Display]) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        out += before;
        let gap = after.split_once('}').and_then(|(n, after)| Some((with.get(n.parse::<usize>().ok()?)?, after)));
        match gap {
            Some((value, after)) => {
                out += &value.to_string();
                rest = after;
            }
            None => {
                out.push('{');
                rest = after;
            }
        }
    }
    out + rest
}

macro_rules! words {
    ($($name:ident: $en:literal, $zh:literal;)*) => {
        /// The words of a language.
        #[derive(Debug)]
        pub(crate) struct Words { $(pub(crate) $name: &'static str,)* }
        static EN: Words = Words { $($name: $en,)* };
        static ZH: Words = Words { $($name: $zh,)* };
        #[cfg(test)]
        const ALL: &[(&str, &str, &str)] = &[$((stringify!($name), $en, $zh),)*];
    };
}

words! {
    // The frame.
    skip: "Skip to the content", "跳到正文";
    menu: "Pages", "页面";
    log_out: "Log out", "退出";
    language: "Language", "语言";
    theme: "Theme", "外观";
    theme_auto: "As the system", "跟随系统";
    theme_light: "Light", "浅色";
    theme_dark: "Dark", "深色";
    api_docs: "API", "API 文档";
    role_viewer: "viewer", "只读";
    role_operator: "operator", "操作员";
    role_admin: "admin", "管理员";
    live: "Live", "实时";

    // Logging in.
    login: "Log in", "登录";
    login_lead: "Log in with a token. The first one was shown when the server first started; others are made by an admin:",
        "使用令牌登录。服务首次启动时会显示第一个令牌；其他令牌由管理员创建：";
    login_token: "Token", "令牌";
    login_wrong: "This token is not known, has expired or was revoked.", "令牌无效、已过期或已被吊销。";
    login_wait: "Too many wrong tokens came from your address. Wait a minute.", "来自您地址的错误令牌过多，请等待一分钟。";

    // Problems.
    sorry_404: "There is nothing here", "这里什么也没有";
    sorry_404_do: "It may have ended and not been kept, or the address is wrong. Look for it by its key or business id.",
        "它可能已结束且未保留，或者地址有误。可按键或业务编号查找。";
    sorry_403: "You may not do this", "您没有权限";
    sorry_403_do: "Ask somebody with a token of a higher role, or log in with another one.", "请联系拥有更高权限令牌的人，或换一个令牌登录。";
    sorry_form: "This form cannot be used", "此表单已失效";
    sorry_form_do: "Go back, load the page again and repeat it.", "请返回，重新加载页面后再试。";
    sorry_stopping: "The server stops", "服务正在停止";
    sorry_stopping_do: "What is done is done. When it is back, repeat this: the same filter goes on with the rest.",
        "已完成的部分不会撤销。服务恢复后请重复此操作，相同的筛选条件会继续处理剩余部分。";
    sorry_409: "Something else happened meanwhile", "期间已发生其他变化";
    sorry_409_do: "Go back and look at it again before you repeat this.", "请返回查看最新状态后再操作。";
    sorry_400: "That is not understood", "无法理解该请求";
    sorry_400_do: "Go back and correct what is named below.", "请返回并更正下面指出的内容。";
    sorry_unavailable: "This server cannot do it now", "此服务器暂时无法执行";
    sorry_unavailable_do: "It stops, or has lost its database. Look whether it was done, and repeat it if not, on another server or later.",
        "服务正在停止，或已与数据库断开。请确认操作是否已完成；若未完成，请在其他服务器上或稍后重试。";
    sorry_503: "The database does not answer in time", "数据库未及时响应";
    sorry_503_do: "Wait a moment and try again. If it stays so, look at the server's log and at the database.",
        "请稍候重试。若持续如此，请检查服务日志和数据库。";
    sorry_engine: "This server runs no tasks", "此服务不执行任务";
    sorry_engine_do: "It only shows what there is. Do this on a server that was started with redrive serve.", "它只能查看。请在用 redrive serve 启动的服务上操作。";
    sorry_guard: "This table is not guarded just now", "此表当前未受守护";
    sorry_guard_do: "Below is what it lacks. Mend its settings, its columns or its database; it is tried again by itself.",
        "原因见下。请修正其配置、列或数据库；系统会自动重试。";
    sorry_500: "Something went wrong here", "服务内部出错";
    sorry_500_do: "The server's log has the details.", "详情见服务日志。";
    sorry_back: "To the overview", "回到总览";

    // Durations.
    in_days: "{0} d", "{0} 天";
    in_hours: "{0} h", "{0} 小时";
    in_minutes: "{0} min", "{0} 分";
    in_seconds: "{0} s", "{0} 秒";
    in_ms: "{0} ms", "{0} 毫秒";

    // What was just done.
    said_retried: "Task {0} is due now.", "任务 {0} 已设为立即重试。";
    said_cancelled: "Task {0} is cancelled.", "任务 {0} 已取消。";
    said_stop_requested: "Task {0} runs; it ends after this attempt, unless that succeeds.", "任务 {0} 正在执行；本次尝试若未成功，之后即结束。";
    said_failed: "Task {0} is a dead letter now.", "任务 {0} 已转为死信。";
    said_policy_edited: "Task {0} has its new policy.", "任务 {0} 的策略已更新。";
    said_redriven: "It was brought back as task {0}.", "已恢复为任务 {0}。";
    said_twin: "A task with the same key lives already: {0}. The letter stays.", "已有相同键的任务在运行：{0}。死信保留。";
    said_resolved: "Letter {0} is resolved.", "死信 {0} 已标记为解决。";
    said_discarded: "Letter {0} is discarded.", "死信 {0} 已丢弃。";
    said_acknowledged: "You have seen letter {0}.", "已确认看到死信 {0}。";
    said_taken_over: "Letter {0} has an owner.", "死信 {0} 已有负责人。";

    // Overview.
    overview: "Overview", "总览";
    needs_you: "What needs you", "需要处理";
    needs_nobody: "Nothing needs you.", "目前无需处理。";
    first_title: "Enqueue the first task", "提交第一个任务";
    first_lead: "A request that is delivered until it succeeds. Take your own token:", "提交一个请求，系统会一直投递直到成功。请换成您自己的令牌：";
    copy: "Copy", "复制";
    copied: "Copied", "已复制";
    need_trouble: "This node does not look for tasks", "本节点未在扫描任务";
    need_trouble_do: "Readiness", "就绪状态";
    need_gate: "{0} is blocked: its tasks wait", "{0} 的熔断器已断开：其任务等待中";
    need_gate_half: "{0} is recovering: probes only", "{0} 的熔断器半开：仅放行探测";
    need_gate_held: "{0} is held by a person", "{0} 的熔断器由人工控制";
    need_gate_n: "tasks waiting: {0}", "{0} 个任务在等待";
    need_gate_do: "Gates", "熔断器";
    need_dead: "Dead letters that wait for somebody: {0}", "{0} 条死信等待处理";
    need_dead_do: "Look at them", "查看";
    need_stuck: "Sagas that are stuck: {0}", "{0} 个长事务卡住";
    need_stuck_why: "They cannot go on, nor back, without a person.", "没有人工介入，它们无法前进也无法回退。";
    need_rows: "{0}: rows that need people: {1}", "{0}：{1} 行数据需要人工处理";
    need_guard: "{0} is not guarded just now", "{0} 目前未受守护";
    need_channel: "The channel {0} fails; times in a row: {1}", "通知渠道 {0} 连续失败 {1} 次";
    need_channel_do: "Channels", "通知渠道";
    need_unhandled: "{0}: no node handles this method; tasks that wait: {1}", "{0}：没有节点处理此方法；{1} 个任务在等待";
    need_unhandled_why: "Start a process that handles it, or cancel them.", "请启动能处理它的进程，或取消这些任务。";
    need_late: "{0} is behind; its tasks: {1}", "{0} 已积压；{1} 个任务";
    need_late_why: "The first due task waits since then: its limits are too tight, its handlers are slow, or its gate holds it back.",
        "最早到期的任务自那时起一直在等待：限额过紧、处理过慢，或被熔断器暂缓。";
    need_tasks_do: "Its tasks", "查看任务";
    need_paused: "{0} is paused", "{0} 已暂停";
    need_paused_by: "By {0}", "操作人：{0}";
    need_paused_do: "Methods", "方法";
    need_node: "Node {0} died", "节点 {0} 已失联";
    need_node_why: "Others have taken over its tasks.", "其任务已由其他节点接管。";
    need_node_do: "Nodes", "节点";
    rate_in: "In", "进入";
    rate_done: "Done", "完成";
    rate_failed: "Failed attempts", "失败尝试";
    per_minute: "per minute", "每分钟";
    due_now: "Due now", "当前到期";
    oldest: "oldest", "最早";
    waiting: "Waiting", "等待中";
    running_n: "{0} running", "{0} 个执行中";
    dead: "Dead letters", "死信";
    unowned_n: "{0} without owner", "{0} 条无人负责";
    gates_open: "Gates not flowing", "未闭合的熔断器";
    nodes_alive: "Nodes alive", "在线节点";
    chart_hour: "Last hour, per minute", "最近一小时（每分钟）";
    chart_day: "Last day, per minute", "最近一天（每分钟）";
    chart_backlog: "Tasks in the store, last day", "库存任务数（最近一天）";
    methods: "Methods", "方法";
    method: "Method", "方法";
    tasks: "Tasks", "任务";
    oldest_due: "First due", "最早到期";
    no_methods: "There are no tasks and no dead letters.", "没有任务，也没有死信。";

    // Tasks.
    tasks_live: "waiting or running", "等待或执行中";
    tasks_ended: "ended", "已结束";
    ended_lead: "What has ended and is kept: by its policy, or because a person closed it. Newest first.", "已结束且被保留的任务：按策略保留，或由人工关闭。最新的在前。";
    ended_how: "How", "结果";
    no_ended: "Nothing that has ended is kept. Tasks are kept whose policy says so, and dead letters that people close:",
        "没有保留已结束的任务。策略要求保留的任务，以及人工关闭的死信，会显示在这里：";
    tasks_lead: "What waits or runs, newest first. What has died is among the dead letters.", "等待或执行中的任务，最新的在前。已死亡的任务见死信。";
    filter: "Filter", "筛选";
    search: "Search", "搜索";
    clear: "Clear", "清除";
    any: "any", "不限";
    task: "Task", "任务";
    id: "Id", "编号";
    key: "Key", "键";
    status: "Status", "状态";
    due: "Due", "到期";
    business: "Business", "业务";
    business_type: "Business type", "业务类型";
    business_id: "Business id", "业务编号";
    error_kind: "Kind of error", "错误类别";
    error_text: "Text in the error", "错误文本";
    created: "Created", "创建";
    created_by: "Created by", "创建者";
    created_within: "Created in the last", "创建于最近";
    created_from: "Created from (UTC)", "创建时间自（UTC）";
    created_before: "Created before (UTC)", "创建时间至（UTC）";
    attempts: "Attempts", "尝试次数";
    last_error: "Last error", "最近错误";
    next_try: "Next attempt", "下次尝试";
    newest: "Newest", "最新";
    older: "Older", "更早";
    look_on: "Look on", "继续查找";
    select: "Select", "选择";
    select_all: "Select all of this page", "全选本页";
    none_yet: "None in the part that was looked through. There is more.", "已查找的部分中没有符合的，后面还有。";
    none_found: "Nothing matches this filter.", "没有符合筛选条件的记录。";
    none_found_dead: "Look among the dead letters", "在死信中查找";
    no_tasks: "Nothing waits and nothing runs. This enqueues a task:", "没有等待或执行中的任务。可这样提交一个任务：";
    state_running: "running", "执行中";
    state_stopping: "stopping", "正在停止";
    state_retrying: "retrying", "重试中";
    state_scheduled: "scheduled", "已安排";
    state_due: "due", "到期";
    state_dead: "dead", "死信";
    retry_now: "Retry now", "立即重试";
    cancel: "Cancel", "取消";
    fail: "Give up", "判为失败";
    sure_cancel: "Cancel this task? It will not be tried again, and nobody is told.", "取消此任务？将不再重试，也不通知任何人。";
    sure_fail: "Give this task up? It becomes a dead letter.", "放弃此任务？它将成为死信。";

    // One task.
    what_to_do: "What to do about it", "如何处理";
    life: "Its life", "经过";
    facts: "Facts", "信息";
    policy: "Policy", "策略";
    tries: "Attempts so far and to come", "已有和将来的尝试";
    coming: "If it goes on failing, it is tried at", "若持续失败，将在以下时间重试";
    edit_policy: "Edit the policy", "编辑策略";
    policy_json: "As JSON; what is left out has its default", "JSON 格式；省略的字段取默认值";
    save: "Save", "保存";
    params: "Params", "参数";
    params_hidden: "Viewers do not see params.", "只读用户不可查看参数。";
    response: "Response", "响应";
    put_off: "Put off", "推迟";
    put_off_n: "{0} times, without counting an attempt: {1}", "{0} 次，未计入尝试：{1}";
    put_off_asked: "its handler asked to be called later (the times of that are not kept)", "处理程序要求稍后再调用（具体时间不保留）";
    put_off_slowed: "what it calls asked for a slower pace, for {0} in all", "所调用的目标要求放慢速度，累计 {0}";
    put_off_sealed: "the key for its params was missing", "缺少其参数的密钥";
    put_off_until: "until", "推迟至";
    gate_waits: "The task waits until its target is back. That uses up no attempt.", "熔断器断开期间任务等待，不消耗也不计入尝试。";
    curl_hidden: "Its params cannot be read here, so there is no command that does the same again.", "此处无法读取其参数，因此没有可重复执行的命令。";
    gate: "Gate", "熔断器";
    gate_open: "blocked", "断开";
    crashes: "Crashes", "崩溃次数";
    priority: "Priority", "优先级";
    origin: "Brought back from", "恢复自";
    redriven_as: "Brought back as", "已恢复为";
    trace: "Trace", "追踪";
    ended_at: "Ended", "结束";
    by: "by {0}", "操作人：{0}";
    on_node: "node {0}", "节点 {0}";
    life_created: "Enqueued", "提交";
    life_earlier: "{0} earlier attempts failed; their errors are not kept", "更早的 {0} 次尝试失败，其错误未保留";
    life_failed: "Attempt {0} failed", "第 {0} 次尝试失败";
    life_put_off: "Put off, without an attempt", "推迟，未计入尝试";
    life_slowed: "Asked for a slower pace {0} times, put off for {1} in all", "目标 {0} 次要求放慢速度，累计推迟 {1}";
    life_crashed: "Its node died", "所在节点失联";
    life_running: "Attempt {0} runs", "第 {0} 次尝试执行中";
    life_stopping: "ends after this attempt, unless it succeeds", "若本次未成功，之后即结束";
    life_due: "Attempt {0} is due and waits for a node", "第 {0} 次尝试已到期，等待节点执行";
    life_next: "Attempt {0}", "第 {0} 次尝试";
    life_notified: "People were told that it keeps failing", "已通知相关人员其持续失败";
    life_dead: "Dead: {0}", "成为死信：{0}";
    life_person: "{0}: {1}", "{0}：{1}";
    refused: "refused: {0}", "被拒绝：{0}";
    ended_done: "done", "已完成";
    ended_cancelled: "cancelled", "已取消";
    ended_rejected: "rejected at once", "首次即被拒绝";
    ended_dropped: "given up and dropped", "放弃并丢弃";
    ended_resolved: "resolved by a person", "人工解决";
    ended_discarded: "discarded by a person", "人工丢弃";
    ended_redriven: "brought back as a new task", "已恢复为新任务";

    // A policy in words.
    policy_tries: "Tries up to {0} times over about {1}, then {2}.", "最多尝试 {0} 次，历时约 {1}，之后{2}。";
    policy_once: "Tries once, then {0}.", "只尝试一次，之后{0}。";
    policy_unlimited: "Tries until it succeeds.", "一直尝试直到成功。";
    policy_then_dead: "it is a dead letter", "成为死信";
    policy_then_escalate: "it is a dead letter and people are reminded of it", "成为死信并持续提醒相关人员";
    policy_then_drop: "it goes without a letter", "直接丢弃，不留死信";
    policy_grows: "Waits {0} … up to {1} after a failure", "失败后依次等待 {0} … 最长 {1}";
    policy_fixed: "Waits {0} after each failure", "每次失败后等待 {0}";
    policy_list: "Waits {0} after failures, the last one again and again", "失败后依次等待 {0}，最后一项重复";
    policy_jitter_add: ", and up to {0} more by chance.", "，并随机增加最多 {0}。";
    policy_jitter: ", spread by chance.", "，并随机打散。";
    policy_no_jitter: ".", "。";
    policy_timeout: "An attempt that takes longer than {0} has failed.", "单次尝试超过 {0} 即为失败。";
    policy_retry_after: "A target that asks for a slower pace is left alone for at most {0} at once, and may postpone the task for {1} in all.", "目标要求放慢速度时，每次至多等待 {0}，累计至多推迟 {1}。";
    policy_duration: "No attempt begins later than {0} after it was created.", "创建 {0} 之后不再开始新的尝试。";
    policy_deadline: "No attempt begins after {0}.", "{0} 之后不再开始新的尝试。";
    policy_retry_for: "Only these errors are tried again: {0}.", "仅重试这些错误：{0}。";
    policy_no_retry_for: "These errors are not tried again: {0}.", "不重试这些错误：{0}。";
    policy_success_if: "It has succeeded if {0}.", "成功条件：{0}。";
    policy_notify_failures: "People are told after {0} failures.", "失败 {0} 次后通知相关人员。";
    policy_notify_for: "People are told when it has failed for {0}.", "持续失败 {0} 后通知相关人员。";
    policy_on_success: "Then {0} is called with the result.", "成功后以结果调用 {0}。";
    policy_on_failure: "If it is given up, {0} is called.", "放弃时调用 {0}。";
    policy_on_crash: "It is not repeated after a crash, but waits for a person.", "崩溃后不自动重复，等待人工处理。";
    policy_keep: "It is kept when it has succeeded.", "成功后保留记录。";

    // Dead letters.
    dead_lead: "Tasks that were given up and wait for somebody.", "已放弃、等待人工处理的任务。";
    groups: "What they died of", "死亡原因分组";
    group_many: "{0} like this since", "{0} 条同类，始于";
    group_one: "{0} like this,", "{0} 条，于";
    groups_cut: "Of the newest {0} letters, the {1} largest groups.", "仅统计最新 {0} 条中最大的 {1} 组。";
    last_one: "the last", "最近";
    show: "Show", "查看";
    redrive_all: "Redrive all", "全部恢复";
    all_owned: "all taken over", "均已有人负责";
    reason_why: "Why", "原因";
    died: "Died", "死亡时间";
    owner: "Owner", "负责人";
    owned_no: "nobody", "无人";
    owned_yes: "somebody", "有人";
    no_dead: "No dead letters: nothing waits for a person.", "没有死信：无需人工处理。";
    redrive: "Redrive", "恢复";
    resolve: "Resolve", "标记解决";
    discard: "Discard", "丢弃";
    sure_discard: "Discard this letter? It will not be done.", "丢弃此死信？它将不会被执行。";
    take_over: "Take over", "接手";
    acknowledge: "I have seen it", "我已看到";
    note: "Note", "备注";
    reminded: "Reminders", "提醒";
    reminded_n: "{0} so far; when each was is not kept", "已有 {0} 次，具体时间不保留";
    next_reminder: "Next reminder", "下次提醒";

    // Many at once.
    bulk: "To many at once", "批量操作";
    bulk_which: "To", "对象";
    bulk_selected: "those that are ticked", "已勾选的";
    bulk_all: "all that the filter finds", "筛选出的全部";
    bulk_retry: "Retry {0} tasks now?", "立即重试 {0} 个任务？";
    bulk_cancel: "Cancel {0} tasks?", "取消 {0} 个任务？";
    bulk_fail: "Give up {0} tasks?", "放弃 {0} 个任务？";
    bulk_redrive: "Redrive {0} dead letters?", "恢复 {0} 条死信？";
    bulk_resolve: "Resolve {0} dead letters?", "标记 {0} 条死信为已解决？";
    bulk_discard: "Discard {0} dead letters?", "丢弃 {0} 条死信？";
    bulk_lead: "Nothing is done yet. It goes batch by batch; leave the page to stop it after the batch under way.",
        "尚未执行。将分批进行；离开页面即在当前批次后停止。";
    bulk_rate: "At most so many a second", "每秒最多";
    bulk_rate_none: "as many as go", "不限";
    bulk_no: "Go back", "返回";
    bulk_back: "To the list", "回到列表";
    bulk_progress: "Progress", "进度";
    bulk_done: "Done", "完成";
    bulk_requested: "Asked to stop", "已请求停止";
    bulk_skipped: "Passed over", "跳过";
    bulk_failed: "Failed", "失败";
    bulk_finished: "That was all.", "全部完成。";
    bulk_login: "Your session has ended, and nothing was done. Log in again:", "会话已结束，尚未执行任何操作。请重新登录：";
    bulk_refused: "Nothing was done:", "未执行任何操作：";
    bulk_broken: "It could not go on; what is done is done:", "无法继续；已完成的部分有效：";
    skipped_twin: "a task with the same key lives", "已有相同键的任务";
    skipped_gone: "gone meanwhile", "期间已消失";
    skipped_running: "running", "执行中";
    skipped_busy: "changed just then", "正在变化";
    span_15m: "15 minutes", "15 分钟";
    span_1h: "hour", "1 小时";
    span_6h: "6 hours", "6 小时";
    span_1d: "day", "1 天";
    span_7d: "7 days", "7 天";

    // Why a task is dead.
    reason_exhausted: "out of attempts", "次数用尽";
    reason_expired: "out of time", "超过时限";
    reason_rejected: "rejected", "被拒绝";
    reason_failed_by_hand: "failed by hand", "人工判失败";
    reason_crashed: "crashed", "多次崩溃";
    reason_undecodable: "unreadable", "无法解析";
    reason_postponed: "slowed down for too long", "限流过久";

    // Pages of the second half of the menu.
    methods_lead: "What waits for which method, what holds it back, and how long attempts take. The worst comes first.",
        "各方法的等待任务、阻碍原因与执行耗时，最严重的排在最前。";
    no_methods_yet: "No method has tasks, and no node handles one. A program registers methods when it starts; HTTP tasks need none.",
        "还没有任何方法有任务，也没有节点处理方法。程序启动时会注册方法；HTTP 任务无需注册。";
    took: "Took (p50 · p95 · p99)", "耗时（p50 · p95 · p99）";
    took_lead: "Times are of attempts on this server in the last minutes.", "耗时为本服务器最近几分钟的尝试。";
    pause: "Pause", "暂停";
    resume: "Resume", "恢复执行";
    is_paused: "paused", "已暂停";
    sure_pause: "Hold its tasks back on all nodes? What runs goes on.", "在所有节点上暂停其任务？正在执行的会继续。";
    nobody_handles: "no live node handles it", "没有在线节点处理";
    on_n_nodes: "nodes: {0}", "节点：{0}";
    gates: "Gates", "熔断器";
    gates_open_n: "gates not flowing: {0}", "未闭合的熔断器：{0}";
    no_gates: "No gate has opened yet. A gate holds a method or host back while it is down; HTTP tasks have one for each host, methods if they ask for it:",
        "尚无熔断器断开过。熔断器在方法或主机故障时暂停其任务；HTTP 任务按主机自动设置，方法需在配置中开启：";
    gate_closed: "flowing", "闭合";
    gate_half_open: "recovering", "半开";
    gate_held_open: "blocked by a person", "人工保持断开";
    gate_held_closed: "flowing, held by a person", "人工保持闭合";
    gate_probes_from: "next probe", "下次探测";
    gate_failing_since: "failing since", "故障始于";
    gate_probes: "{0} of {1} probes succeeded ({2} %)", "{1} 次探测中 {0} 次成功（{2}%）";
    gate_round: "next probes: up to {0}", "下一轮探测：至多 {0} 个";
    gate_opens: "{0} waits in a row", "连续断开 {0} 次";
    gate_changed: "changed", "变更于";
    gate_hold_open: "Block", "保持断开";
    gate_hold_closed: "Let flow", "保持闭合";
    gate_release: "Release", "解除人工控制";
    gate_reset: "Reset", "重置";
    gate_buttons: "Block: nothing goes through until it is released. Let flow: everything goes through, whether it succeeds or not. Reset: flowing, with its history deleted.",
        "保持断开：在解除之前不放行任何任务。保持闭合：全部放行，不论结果。重置：恢复闭合，并清除记录。";
    sure_hold_open: "Block it? Nothing goes through until it is released.", "保持断开？在解除之前不放行任何任务。";
    sure_hold_closed: "Let it flow? Calls go through although they fail.", "保持闭合？即使调用失败也会放行。";
    tally_here: "Seen here", "本节点观测";
    tally_failed: "{0} of {1} calls failed (blocks at {2} % of at least {3})", "{1} 次调用中 {0} 次失败（至少 {3} 次且达 {2}% 时断开）";
    tally_slow: "{0} of {1} calls slow (blocks at {2} % of at least {3})", "{1} 次调用中 {0} 次过慢（至少 {3} 次且达 {2}% 时断开）";
    tally_row: "{0} failures in a row (blocks at {1})", "连续失败 {0} 次（达 {1} 次时断开）";
    tally_failures: "{0} failures within {1} (blocks at {2})", "{1}内失败 {0} 次（达 {2} 次时断开）";
    targets: "Targets", "目标服务";
    target: "Target", "目标";
    address: "Address", "地址";
    limits: "Limits and policy", "限制与策略";
    said_method_paused: "{0} is paused.", "{0} 已暂停。";
    said_method_resumed: "{0} runs again.", "{0} 已恢复执行。";
    said_gate_held_open: "{0} is blocked until it is released.", "{0} 的熔断器已保持断开。";
    said_gate_held_closed: "{0} flows until it is released, whatever comes of it.", "{0} 的熔断器已保持闭合。";
    said_gate_released: "The gate of {0} is released.", "{0} 的熔断器已解除人工控制。";
    said_gate_reset: "{0} flows again.", "{0} 的熔断器已重置为闭合。";

    // Sagas.
    sagas: "Sagas", "长事务";
    saga: "Saga", "长事务";
    sagas_lead: "Flows that are finished, or undone, or say that they are stuck.", "要么完成，要么撤销，要么明示卡住的流程。";
    all_states: "all", "全部";
    sagas_stuck: "These need a person", "需要人工处理";
    no_sagas: "There are no sagas. This starts one:", "还没有长事务。这样启动一个：";
    none_else: "There are no others.", "没有其他的了。";
    name: "Name", "名称";
    since: "In this state since", "进入此状态";
    started: "Started", "开始";
    goes_on: "Goes on by itself", "自动继续";
    deadline: "Goes back unless done by", "截止时间";
    next_time: "Next time", "下个时间点";
    id_begins: "Id begins with", "编号开头";
    stuck_lead: "It cannot go on, nor back, without you.", "没有人工介入，它无法前进也无法回退。";
    hint_retry: "Retry: what waits or was given up is tried now.", "重试：立即执行等待或已放弃的步骤。";
    hint_compensate: "Compensate: what was done is undone.", "补偿：撤销已完成的步骤。";
    hint_forward: "Forward: it goes on instead of back.", "前进：改为继续而非回退。";
    hint_kill: "Kill: it ends as it is.", "终止：保持现状并结束。";
    compensate_now: "Compensate now", "立即补偿";
    sure_compensate: "Undo all that was done?", "撤销所有已完成的步骤？";
    go_forward: "Go forward", "改为前进";
    go_forward_undone: "Go forward; what may have been undone was", "改为前进（结果不明的撤销视为已生效）";
    go_forward_not_undone: "Go forward; it was not undone", "改为前进（结果不明的撤销视为未生效）";
    sure_forward: "Go on instead of back? What was undone is done again.", "改为继续而非回退？已撤销的步骤会重新执行。";
    kill: "Kill", "强制终止";
    kill_title: "End it as it is?", "就此终止？";
    kill_lead: "It ends now. Nothing is undone, and it cannot be brought back.", "它将立即结束。不会撤销任何内容，且无法恢复。";
    kill_stays: "These steps have or may have had an effect, which stays:", "以下步骤已经或可能已经生效，其效果将保留：";
    kill_sure: "I know that nothing is undone.", "我知道不会撤销任何内容。";
    steps: "Steps", "步骤";
    steps_drawn: "The steps and which follow which; the table below says the same", "步骤及其先后关系；下表内容相同";
    step: "Step", "步骤";
    step_after: "After", "前置步骤";
    step_result: "Result", "结果";
    changed: "Changed", "变更";
    pivot: "point of no return", "不可回退点";
    output: "Output", "输出";
    resolve_output: "Its result, as JSON", "结果（JSON）";
    resolve_step: "It is done", "标记完成";
    skip_step: "Leave it out", "跳过";
    sure_skip: "Leave this step out? An undo that is left out is a gap.", "跳过此步骤？跳过的撤销会留下缺口。";
    step_buttons: "Done: with the result above, which later steps see. Left out: as if it had no effect.", "完成：后续步骤可见上面的结果。跳过：视为没有效果。";
    journal: "Journal", "日志";
    earlier_events: "Earlier events, not shown", "更早的事件未显示";
    input: "Input", "输入";
    edit_input: "Edit the input", "修改输入";
    input_json: "Input as JSON, for all attempts to come", "输入（JSON），对之后的尝试生效";
    signal: "Tell it something", "发送信号";
    signal_name: "Signal", "信号";
    signal_payload: "Payload, as JSON", "内容（JSON）";
    signal_send: "Send", "发送";
    saga_running: "running", "执行中";
    saga_waiting: "waiting", "等待中";
    saga_compensating: "compensating", "补偿中";
    saga_stuck: "stuck", "卡住";
    saga_succeeded: "succeeded", "成功";
    saga_compensated: "compensated", "已补偿";
    saga_gaps: "compensated with gaps", "已补偿（有缺口）";
    saga_failed: "failed", "失败";
    saga_killed: "killed", "已终止";
    kind_call: "call", "调用";
    kind_reserve: "reservation", "预留";
    kind_sleep: "sleep", "等待时间";
    kind_wait_for: "waits for a signal", "等待信号";
    step_pending: "to come", "未开始";
    step_running: "running", "执行中";
    step_waiting: "waiting", "等待中";
    step_done: "done", "完成";
    step_refused: "refused", "被拒绝";
    step_unknown: "failed, effect unknown", "失败，效果未知";
    step_skipped: "left out", "已跳过";
    step_confirming: "being confirmed", "确认中";
    step_confirmed: "confirmed", "已确认";
    step_undoing: "being undone", "撤销中";
    step_undone: "undone", "已撤销";
    step_undo_failed: "undo failed", "撤销失败";
    saga_began: "It began", "开始";
    step_runs: "{0} runs", "{0} 开始执行";
    undo_runs: "{0} is being undone", "开始撤销 {0}";
    confirm_runs: "{0} is being confirmed", "开始确认 {0}";
    step_is_done: "{0} is done", "{0} 完成";
    undo_is_done: "{0} is undone", "{0} 已撤销";
    confirm_is_done: "{0} is confirmed", "{0} 已确认";
    step_failed: "{0} failed for good", "{0} 最终失败";
    undo_failed: "The undo of {0} failed for good", "{0} 的撤销最终失败";
    confirm_failed: "The confirmation of {0} failed for good", "{0} 的确认最终失败";
    failed_refused: "it had no effect", "没有产生效果";
    failed_unknown: "whether it had an effect is not known", "是否产生效果未知";
    work_lost: "The task of {0} is gone", "{0} 的任务已丢失";
    step_left_out: "{0} was left out", "{0} 被跳过";
    step_time_up: "The time of {0} is up", "{0} 超时";
    saga_told: "It was told {0}", "收到信号 {0}";
    saga_back: "It goes back: what was done is undone", "开始回退：撤销已完成的步骤";
    saga_back_to: "It goes back to {0}", "回退到 {0}";
    saga_round: "The next round begins", "进入下一轮";
    saga_decided: "Nothing can go wrong any more: reservations are confirmed", "不再会失败：开始确认预留";
    saga_forward: "It goes on instead of back", "改为继续前进";
    saga_input: "It was given another input", "输入已修改";
    saga_ended: "It ended: {0}", "结束：{0}";
    back_failed: "{0} failed: {1}", "{0} 失败：{1}";
    back_time_up: "the time of {0} is up", "{0} 超时";
    back_deadline: "its own time is up", "整体超时";
    said_saga_told: "Saga {0} was told.", "已通知长事务 {0}。";
    said_saga_retried: "What waited or had failed of saga {0} is tried now.", "长事务 {0} 中等待或失败的部分已立即重试。";
    said_saga_skipped: "The step of saga {0} is left out.", "长事务 {0} 的步骤已跳过。";
    said_saga_resolved: "The step of saga {0} is done.", "长事务 {0} 的步骤已标记完成。";
    said_saga_input: "Saga {0} has its new input.", "长事务 {0} 的输入已更新。";
    said_saga_forward: "Saga {0} goes on.", "长事务 {0} 改为继续前进。";
    said_saga_cancelled: "Saga {0} is being undone.", "长事务 {0} 正在补偿。";
    said_saga_killed: "Saga {0} is ended as it was.", "长事务 {0} 已强制终止。";

    // Guards.
    guards: "Guards", "守护表";
    guards_lead: "Business tables whose failed rows are retried, and handed to people when that does not help.",
        "其失败行会被自动重试、无效时转交人工的业务表。";
    no_guards: "No table is guarded. A guard is a section of redrive.toml, with the services that check and mend a row:",
        "尚未守护任何表。守护在 redrive.toml 中配置，指定检查与处理一行数据的服务：";
    guard_trouble: "It is not guarded just now", "当前未受守护";
    guard_hidden: "its database cannot be used; operators see why", "其数据库不可用；操作员可查看原因";
    err_4000: "retried", "重试中";
    err_4001: "needs people", "待人工处理";
    err_2000: "normal", "正常";
    err_2001: "mended by itself", "自动恢复";
    err_2002: "mended by people", "人工恢复";
    err_never: "never failed", "从未失败";
    err_other: "other", "其他";
    row: "Row", "数据行";
    no_rows: "No row is in this state:", "没有处于此状态的行：";
    of_start_time: "Failing since", "首次异常时间";
    of_retry_count: "Retries", "已重试次数";
    of_next_retry: "Next retry", "下次自动重试";
    of_notify_count: "People told", "已通知次数";
    of_next_remind: "Told again", "下次提醒人工";
    rows_hidden: "Rows are shown to operators and admins.", "数据行仅对操作员和管理员可见。";
    page_back: "Back", "上一页";
    page_on: "On", "下一页";
    row_why: "What happens next", "接下来会怎样";
    row_next_poll: "The next poll takes it up.", "下一次扫描会处理它。";
    not_marked: "It was never marked as failed (err_status is NULL).", "从未被标记为异常（err_status 为 NULL）。";
    not_abnormal: "It is not retried: err_status is {0}, not 4000 or 4001.", "不会重试：err_status 为 {0}，不是 4000 或 4001。";
    not_due: "It is not due before {0}, or is being retried now.", "{0} 之前不会重试，或正在重试。";
    not_told: "It needs people. They are told again at {0}.", "需要人工处理，{0} 会再次提醒。";
    is_success: "The business status is {0}, success: the next poll closes it.", "业务状态为 {0}（成功）：下一次扫描会将其关闭。";
    not_failed: "It is passed over: the business status is {0}, not {1}.", "会被跳过：业务状态为 {0}，不是 {1}。";
    row_columns: "Columns", "列";
    row_success: "It is successful", "标记成功";
    row_success_lead: "Say so when you have put it right: the service is told, the row is closed (2002) and its business status set.",
        "处理完毕后标记：将通知服务、关闭该行（2002）并更新业务状态。";
    sure_success: "Say that this row is successful? It is not retried any more.", "标记该行为成功？之后不再重试。";
    said_row_successful: "Row {0} is successful.", "行 {0} 已标记成功。";

    // Nodes.
    nodes: "Nodes", "节点";
    nodes_lead: "Processes that run tasks. Each looks after some of the 64 shards of every method that it handles.",
        "执行任务的进程。每个节点负责其所处理方法的 64 个分片中的一部分。";
    no_nodes: "No node is alive: nothing runs. Start one:", "没有在线节点：任务不会执行。启动一个：";
    node: "Node", "节点";
    last_beat: "Last beat", "最近心跳";
    lease: "Lease", "租约时长";
    leases_differ: "Nodes have different leases. A silent node is declared dead after the longer of its own lease and that of the node that watches it. Set the same engine.lease on all nodes.",
        "各节点的租约时长不一致。节点失联后，要等到它自身与观察节点中较长的租约到期，才会被判定为失联。请在所有节点上设置相同的 engine.lease。";
    build: "Version", "版本";
    lag: "Lag", "延迟";
    lag_none: "nothing waits that is due", "没有到期未执行的任务";
    lag_lead: "How long the first due task had waited when the node that does the upkeep last looked, for all nodes together. A little is usual; if it grows, there are too few nodes, or something holds tasks back.",
        "负责维护的节点最近一次检查时，最早到期任务已等待的时间（所有节点合计）。少量延迟属正常；若持续增长，说明节点不足或任务被阻碍。";
    upkeep: "upkeep", "维护";
    node_this: "this one", "当前";
    node_alive: "alive", "在线";
    node_quiet: "quiet", "心跳延迟";
    node_leaving: "leaving", "正在退出";
    node_left: "stopped", "已停止";
    node_dead: "died", "已失联";
    shards: "Shards", "分片";
    shards_lead: "Who looks after which shard, by method. The letter is the node's.", "各方法的分片归属，字母代表节点。";
    shards_guess: "Nodes find each other by a registry: this is what the database would say.", "节点通过注册中心互相发现；此处为按数据库推算的结果。";
    shard_map: "A map of the 64 shards with the letter of the node that looks after each", "64 个分片及其负责节点的字母";
    shard_of: "shard {0}: {1}", "分片 {0}：{1}";
    nodes_gone: "Gone", "已离开的节点";
    nodes_gone_lead: "Those that have stopped or died are listed for a week. The tasks of one that died were taken back.",
        "已停止或失联的节点保留一周。失联节点的任务已被收回。";

    // Settings.
    settings: "Settings", "设置";
    settings_lead: "What holds on this server, and where it comes from. Some fields can be changed while nodes run; the others belong into the file.",
        "本服务器当前生效的设置及其来源。部分字段可在运行时修改，其余请修改配置文件。";
    set_path: "Field", "字段";
    set_value: "Value", "值";
    set_from: "From", "来源";
    set_by: "set by {0}", "由 {0} 设置";
    set_built_in: "built in", "内置";
    set_in_file: "file, environment or program", "文件、环境变量或程序";
    set_as_file: "as the file says", "以文件为准";
    set_change: "Change", "修改";
    set_field: "Change a field", "修改字段";
    set_preview: "Look at the change", "预览修改";
    set_would: "This would change, on all nodes, within a few seconds:", "将在几秒内于所有节点生效：";
    set_would_wait: "This would change, on all nodes, with their next start:", "将在各节点下次启动后生效：";
    set_nothing: "(not given)", "（未指定）";
    set_same: "It is so already: nothing would change.", "当前已是此值：不会有任何变化。";
    set_holds: "now", "当前";
    set_how: "A number, a text such as 10s, or JSON such as {\"fixed\": \"3s\"}.", "数字、文本（如 10s）或 JSON（如 {\"fixed\": \"3s\"}）。";
    set_unset: "Take it back", "撤销设置";
    said_setting_set: "{0} is set.", "{0} 已设置。";
    said_setting_unset: "{0} is as the file says again.", "{0} 已恢复为文件中的值。";
    said_setting_waits: "{0} is changed. It holds from the next start of each node on.", "{0} 已修改，将在各节点下次启动后生效。";
    before: "before", "之前";
    after: "after", "之后";

    // The audit.
    audit: "Audit", "审计";
    audit_lead: "What people did, and what they were refused. Newest first.", "人员的操作与被拒绝的操作，最新的在前。";
    audit_action: "Action", "操作";
    audit_target: "Target", "对象";
    audit_change: "Change", "变更";
    who: "Who", "人员";
    time: "Time", "时间";
    time_from: "From (UTC)", "起始（UTC）";
    time_before: "Before (UTC)", "截止（UTC）";
    was_refused: "refused", "被拒绝";
    no_audit: "Nobody has done anything yet. What people do here, on the command line or over the API will be listed.",
        "尚无人员操作。控制台、命令行和 API 上的操作都会记录在此。";

    // Channels.
    channels: "Channels", "通知渠道";
    channels_lead: "How people are told that tasks keep failing, and reminded of what waits for them.", "任务持续失败时如何通知人员，以及提醒待处理事项。";
    no_channels: "No channel is set up: nobody is told when tasks keep failing. Channels are sections of redrive.toml:",
        "尚未配置渠道：任务持续失败时无人知晓。渠道在 redrive.toml 中配置：";
    channel_mail: "mail", "邮件";
    channel_webhook: "webhook", "Webhook";
    channel_kind: "Kind", "类型";
    channel_works: "works", "正常";
    channel_unused: "not used yet", "尚未使用";
    channel_fails: "failed {0} times in a row", "连续失败 {0} 次";
    channel_last_ok: "Last taken", "最近成功";
    channel_sent: "Messages taken", "成功消息数";
    channel_last_failed: "Last failed", "最近失败";
    channel_rests: "Rests until", "暂停至";
    channel_waiting: "Waiting", "待发送";
    channel_waiting_n: "notices: {0} · reminders: {1}", "{0} 条通知，{1} 条提醒";
    channel_digest: "One message at the most in", "消息最短间隔";
    channel_remind: "Reminders first after", "首次再提醒间隔";
    channel_test: "Send a test", "发送测试";
    channel_test_failed: "The test was not taken by", "测试未被接受：";
    said_channel_tested: "{0} has taken the test message.", "{0} 已接收测试消息。";
    reminders: "Reminders to come", "即将发出的提醒";
    no_reminders: "Nobody will be reminded of anything: no dead letter waits that was escalated and has no owner.",
        "没有待发提醒：没有已升级且无人负责的死信。";
}

impl Words {
    /// What a problem is, and what to do about it.
    pub(super) fn sorry(&self, code: &str, status: u16) -> (&'static str, &'static str) {
        let w = self;
        match (code, status) {
            ("wrong_form", _) => (w.sorry_form, w.sorry_form_do),
            ("stopping", _) => (w.sorry_stopping, w.sorry_stopping_do),
            ("unavailable", _) => (w.sorry_unavailable, w.sorry_unavailable_do),
            ("no_engine", _) => (w.sorry_engine, w.sorry_engine_do),
            ("guard_broken", _) => (w.sorry_guard, w.sorry_guard_do),
            ("no_random", _) => (w.sorry_500, w.sorry_500_do),
            (_, 404) => (w.sorry_404, w.sorry_404_do),
            (_, 403) => (w.sorry_403, w.sorry_403_do),
            (_, 409) => (w.sorry_409, w.sorry_409_do),
            (_, 503) => (w.sorry_503, w.sorry_503_do),
            (_, 500) => (w.sorry_500, w.sorry_500_do),
            _ => (w.sorry_400, w.sorry_400_do),
        }
    }

    pub(super) fn reason(&self, reason: redrive::DeadReason) -> &'static str {
        use redrive::DeadReason::{Crashed, Exhausted, Expired, FailedByHand, Postponed, Rejected, Undecodable};
        match reason {
            Exhausted => self.reason_exhausted,
            Expired => self.reason_expired,
            Rejected => self.reason_rejected,
            FailedByHand => self.reason_failed_by_hand,
            Crashed => self.reason_crashed,
            Undecodable => self.reason_undecodable,
            Postponed => self.reason_postponed,
        }
    }

    pub(super) fn ended(&self, how: redrive::store::EndedAs) -> &'static str {
        use redrive::store::EndedAs::{Cancelled, Discarded, Done, Dropped, Redriven, Rejected, Resolved};
        match how {
            Done => self.ended_done,
            Cancelled => self.ended_cancelled,
            Rejected => self.ended_rejected,
            Dropped => self.ended_dropped,
            Resolved => self.ended_resolved,
            Discarded => self.ended_discarded,
            Redriven => self.ended_redriven,
        }
    }

    /// Spans of time to choose from.
    pub(crate) fn spans(&self) -> [(&'static str, &'static str); 5] {
        [("15m", self.span_15m), ("1h", self.span_1h), ("6h", self.span_6h), ("1d", self.span_1d), ("7d", self.span_7d)]
    }

    /// Why one of many was passed over.
    pub(crate) fn skipped<'w>(&'w self, why: &'w str) -> &'w str {
        match why {
            "twin" => self.skipped_twin,
            "gone" => self.skipped_gone,
            "running" => self.skipped_running,
            "busy" => self.skipped_busy,
            other => other,
        }
    }

    /// A field of a filter.
    pub(crate) fn field<'w>(&'w self, name: &'w str) -> &'w str {
        match name {
            "status" => self.status,
            "method" => self.method,
            "key" => self.key,
            "business_type" => self.business_type,
            "business_id" => self.business_id,
            "kind" => self.error_kind,
            "error" => self.error_text,
            "last" => self.created_within,
            "from" => self.created_from,
            "before" => self.created_before,
            "due" => self.due,
            "reason" => self.reason_why,
            "owned" | "owner" => self.owner,
            other => other,
        }
    }

    pub(crate) fn role(&self, role: &redrive::store::Role) -> &'static str {
        use redrive::store::Role::{Admin, Operator, Viewer};
        match role {
            Viewer => self.role_viewer,
            Operator => self.role_operator,
            Admin => self.role_admin,
        }
    }
}

/// Words for the states of sagas, steps and rows.
impl Words {
    pub(super) fn saga_state(&self, state: redrive::saga::SagaState) -> &'static str {
        use redrive::saga::SagaState::{
            Compensated, CompensatedWithGaps, Compensating, Failed, Killed, Running, Stuck, Succeeded, Waiting,
        };
        match state {
            Running => self.saga_running,
            Waiting => self.saga_waiting,
            Compensating => self.saga_compensating,
            Stuck => self.saga_stuck,
            Succeeded => self.saga_succeeded,
            Compensated => self.saga_compensated,
            CompensatedWithGaps => self.saga_gaps,
            Failed => self.saga_failed,
            Killed => self.saga_killed,
        }
    }

    /// What only waits does not run.
    pub(super) fn step_state(&self, state: &str, kind: &str) -> &'static str {
        match state {
            "running" if matches!(kind, "sleep" | "wait_for") => self.step_waiting,
            "running" => self.step_running,
            "done" => self.step_done,
            "refused" => self.step_refused,
            "unknown" => self.step_unknown,
            "skipped" => self.step_skipped,
            "confirming" => self.step_confirming,
            "confirmed" => self.step_confirmed,
            "undoing" => self.step_undoing,
            "undone" => self.step_undone,
            "undo_failed" => self.step_undo_failed,
            _ => self.step_pending,
        }
    }

    pub(super) fn step_kind(&self, kind: &str) -> &'static str {
        match kind {
            "reserve" => self.kind_reserve,
            "sleep" => self.kind_sleep,
            "wait_for" => self.kind_wait_for,
            _ => self.kind_call,
        }
    }

    /// What an `err_status` means.
    pub(super) fn err_status(&self, code: i64) -> &'static str {
        match code {
            2000 => self.err_2000,
            2001 => self.err_2001,
            2002 => self.err_2002,
            4000 => self.err_4000,
            4001 => self.err_4001,
            _ => self.err_other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_languages_have_the_same_gaps() {
        for (name, en, zh) in ALL {
            for gap in ["{0}", "{1}", "{2}", "{3}"] {
                assert_eq!(en.contains(gap), zh.contains(gap), "{name} {gap}");
            }
            assert!(!en.is_empty() && !zh.is_empty(), "{name}");
        }
    }

    #[test]
    fn gaps_are_filled_in_any_order_and_other_braces_stay() {
        assert_eq!(fill("{1} of {0}, {x} {", &[&7, &"a{0}"]), "a{0} of 7, {x} {");
    }

    #[test]
    fn a_person_chooses_before_their_browser() {
        let accepted = |text: &'static str| Lang::of(None, Some(&HeaderValue::from_static(text)));
        assert_eq!(Lang::of(Some("zh"), None), Lang::Zh);
        assert_eq!(Lang::of(Some("tlh"), None), Lang::En);
        assert_eq!(accepted("fr, zh-CN;q=0.8, en;q=0.9"), Lang::En);
        assert_eq!(accepted("zh-TW,zh;q=0.9,en;q=0.8"), Lang::Zh);
        assert_eq!(accepted("zh;q=0, en;q=0.1"), Lang::En);
    }
}
