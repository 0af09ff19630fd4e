-- One row per commit of an operator's action, with the action that it undoes and the one that undid it.
-- needs: ctl
WITH actions AS (
    SELECT
        ctl.*,
        CASE WHEN action = 'undo' THEN regexp_extract(parameters, '"undoes_commit":"([0-9a-f]+)"', 1) END AS undoes_commit
    FROM ctl
    WHERE action IN ('reset', 'clone', 'undo', 'delete', 'replay', 'redrive', 'cutover', 'hand_back')
)
SELECT
    a.shard, a.store_timestamp AS committed_at, a.action, a.group_name, a.actor, a.actor_source, a.reason, a.request_id,
    a.request_part, a.request_complete, undone.action AS undoes_action, undone.request_id AS undoes,
    undo.request_id AS undone_by, a.parameters, a.read_version, a.commit_id
FROM actions a
LEFT JOIN actions undone ON undone.shard = a.shard AND undone.commit_id = a.undoes_commit
LEFT JOIN actions undo ON undo.shard = a.shard AND undo.undoes_commit = a.commit_id
