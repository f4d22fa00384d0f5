-- The lease of each node, in milliseconds: a watcher waits for the longer of its own and this one. 0: not stated, by a node
-- of an older build. See cluster.rs.
{column:redrive_node lease_ms BIGINT NOT NULL DEFAULT 0};
