package org.apache.rocketmq.store.ha;

import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

import org.apache.rocketmq.store.CommitLog;
import org.apache.rocketmq.store.DefaultMessageStore;

/**
 * No replication, in the place of RocketMQ's class: the broker would listen for replicas on every network interface, whatever
 * its bindAddress says. A 4.9 broker has no service to replace.
 */
public class HAService {
    private final WaitNotifyObject waitNotifyObject = new WaitNotifyObject();
    private final AtomicInteger connections = new AtomicInteger();
    private final AtomicLong copied = new AtomicLong();

    public HAService(DefaultMessageStore store) {
    }

    public void start() {
    }

    public void shutdown() {
    }

    public void updateMasterAddress(String address) {
    }

    public void putRequest(CommitLog.GroupCommitRequest request) {
    }

    public boolean isSlaveOK(long offset) {
        return true;
    }

    public AtomicInteger getConnectionCount() {
        return connections;
    }

    public WaitNotifyObject getWaitNotifyObject() {
        return waitNotifyObject;
    }

    public AtomicLong getPush2SlaveMaxOffset() {
        return copied;
    }
}
