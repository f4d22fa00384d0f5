-- Rounds of probes: how many a half-open gate allows, how many of them failed, and when one that is out is lost. See gate.rs.
{column:redrive_gate probes_allowed INT NOT NULL DEFAULT 1};
{column:redrive_gate probes_failed INT NOT NULL DEFAULT 0};
{column:redrive_gate probes_until BIGINT NOT NULL DEFAULT 0};
