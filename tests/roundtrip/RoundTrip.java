import java.io.PrintStream;
import java.io.FileOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicLong;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.MessageQueueSelector;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * The broker's side of the round trip: topics, producers and push consumers of RocketMQ's own client. It compiles with the
 * client of 4.9 and of 5.
 *
 * <pre>
 * topics  NAME_SERVER BROKER [TOPIC]...          waits for the broker; creates the topics, with four queues each
 * produce NAME_SERVER LEDGER ROUND COUNT         sends COUNT messages of each kind
 * consume NAME_SERVER LEDGER LIMIT IDLE_MS [GROUP TOPIC EXPRESSION]...
 *                                                each group until LIMIT messages succeeded, or none came for IDLE_MS
 * trim    NAME_SERVER BROKER                     deletes the log files that are old enough
 * </pre>
 *
 * A ledger is a file to which each process appends lines of fields with tabs between them; the first names the line:
 * {@code sending} (it may be stored or not), {@code sent} (it is) or {@code rolled-back} with key, topic and tag; {@code acked}
 * or {@code failed} with group, key, topic of the queue, queue id and queue offset. A message succeeds once it was retried as
 * often as its property {@code fails} says.
 */
public final class RoundTrip {
    private static final int BIG = 5000;
    private static final int TIMEOUT_MS = 30_000;
    /** ResponseCode.NO_MESSAGE, whose package differs between 4.9 and 5. */
    private static final int NO_MESSAGE = 208;
    private static PrintStream ledger;

    public static void main(String[] args) {
        try {
            run(args);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    private static void run(String[] args) throws Exception {
        if (args[0].equals("topics")) {
            topics(args);
        } else if (args[0].equals("trim")) {
            trim(args);
        } else {
            ledger = new PrintStream(new FileOutputStream(args[2], true), true, "UTF-8");
            if (args[0].equals("produce")) {
                produce(args[1], args[3], Integer.parseInt(args[4]));
            } else {
                consume(args);
            }
        }
    }

    private static synchronized void note(Object... fields) {
        StringBuilder line = new StringBuilder();
        for (Object field : fields) {
            line.append(line.length() == 0 ? "" : "\t").append(field);
        }
        ledger.print(line.append('\n').toString());
    }

    private static DefaultMQAdminExt admin(String nameServer) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(20_000L);
        admin.setNamesrvAddr(nameServer);
        admin.setInstanceName("admin");
        admin.start();
        return admin;
    }

    private static void topics(String[] args) throws Exception {
        DefaultMQAdminExt admin = admin(args[1]);
        waitForBroker(admin, args[2]);
        for (int i = 3; i < args.length; i++) {
            TopicConfig topic = new TopicConfig(args[i]);
            topic.setReadQueueNums(4);
            topic.setWriteQueueNums(4);
            admin.createAndUpdateTopicConfig(args[2], topic);
        }
        admin.shutdown();
    }

    /** The broker serves before its name server knows it. */
    private static void waitForBroker(DefaultMQAdminExt admin, String broker) throws Exception {
        long until = System.currentTimeMillis() + 60_000;
        while (true) {
            boolean known = admin.examineBrokerClusterInfo().getBrokerAddrTable().values().stream()
                .anyMatch(each -> each.getBrokerAddrs().containsValue(broker));
            if (known) {
                return;
            }
            if (System.currentTimeMillis() > until) {
                throw new IllegalStateException("the name server does not know " + broker);
            }
            Thread.sleep(100);
        }
    }

    private static void trim(String[] args) throws Exception {
        DefaultMQAdminExt admin = admin(args[1]);
        admin.deleteExpiredCommitLogByAddr(args[2]);
        admin.cleanExpiredConsumerQueueByAddr(args[2]);
        admin.shutdown();
    }

    // ------------------------------------------------------------------------------------------ producers

    private static Message message(String topic, String round, int n) {
        String key = topic + "-" + round + "-" + n;
        Message message = new Message(topic, "Tag" + "ABC".charAt(n % 3), key, body(topic, key));
        int fails = n % 17 == 0 ? 99 : n % 11 == 0 ? 2 : n % 5 == 0 ? 1 : 0;
        message.putUserProperty("fails", Integer.toString(fails));
        return message;
    }

    private static byte[] body(String topic, String key) {
        StringBuilder text = new StringBuilder("body of ").append(key);
        while (topic.equals("RtBig") && text.length() < BIG) {
            text.append(' ').append(key);
        }
        return text.toString().getBytes(StandardCharsets.UTF_8);
    }

    /** {@code action} sends the message; a message whose send raised, or was killed, may be stored or not. */
    private static void send(Message message, Sending action) {
        noteSend("sending", message);
        try {
            if (action.isStored()) {
                noteSend("sent", message);
            }
        } catch (Exception error) {
            System.err.println(message.getKeys() + ": " + error);
        }
    }

    private static boolean isStored(SendResult result) {
        return result.getSendStatus() == SendStatus.SEND_OK;
    }

    /**
     * A producer commits a transaction by a one-way request: what the send returns says nothing about it. So it counts as
     * stored once the broker finds the message by its key.
     */
    private static boolean commit(TransactionMQProducer producer, Message half) throws Exception {
        producer.sendMessageInTransaction(half, true);
        long until = System.currentTimeMillis() + TIMEOUT_MS;
        while (!isFound(producer, half)) {
            if (System.currentTimeMillis() > until) {
                throw new IllegalStateException("the broker does not find the committed message");
            }
            Thread.sleep(5);
        }
        return true;
    }

    private static boolean isFound(TransactionMQProducer producer, Message message) throws Exception {
        try {
            return !producer.queryMessage(message.getTopic(), message.getKeys(), 1, 0, Long.MAX_VALUE)
                .getMessageList().isEmpty();
        } catch (MQClientException error) {
            if (error.getResponseCode() == NO_MESSAGE) {
                return false;
            }
            throw error;
        }
    }

    private static void noteSend(String word, Message message) {
        note(word, message.getKeys(), message.getTopic(), message.getTags());
    }

    private interface Sending {
        boolean isStored() throws Exception;
    }

    private static void produce(String nameServer, String round, int count) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("rt_producer");
        TransactionMQProducer transactions = new TransactionMQProducer("rt_transactions");
        transactions.setTransactionListener(new Decided());
        for (DefaultMQProducer each : new DefaultMQProducer[] {producer, transactions}) {
            each.setNamesrvAddr(nameServer);
            each.setRetryTimesWhenSendFailed(0);
            each.setMqClientApiTimeout(TIMEOUT_MS);
            each.setSendMsgTimeout(TIMEOUT_MS);
            each.start();
        }
        MessageQueueSelector byShard = (queues, message, shard) -> queues.get((Integer) shard % queues.size());
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            Message normal = message("RtNormal", round, i);
            send(normal, () -> isStored(producer.send(normal)));
            Message ordered = message("RtOrdered", round, i);
            int shard = i % 7;
            send(ordered, () -> isStored(producer.send(ordered, byShard, shard)));
            Message delayed = message("RtDelayed", round, i);
            delayed.setDelayTimeLevel(1 + i % 5);
            send(delayed, () -> isStored(producer.send(delayed)));
            Message big = message("RtBig", round, i);
            send(big, () -> isStored(producer.send(big)));
            Message half = message("RtTransaction", round, i);
            if (i % 4 == 0) {
                rollBack(transactions, half);
            } else {
                send(half, () -> commit(transactions, half));
            }
            batch.add(message("RtBatch", round, i));
            if (batch.size() == 10 || i == count - 1) {
                sendBatch(producer, batch);
                batch.clear();
            }
        }
        producer.shutdown();
        transactions.shutdown();
    }

    private static void rollBack(TransactionMQProducer producer, Message half) {
        noteSend("rolled-back", half);
        try {
            producer.sendMessageInTransaction(half, false);
        } catch (Exception error) {
            System.err.println(half.getKeys() + ": " + error);
        }
    }

    private static void sendBatch(DefaultMQProducer producer, List<Message> batch) {
        batch.forEach(message -> noteSend("sending", message));
        try {
            if (isStored(producer.send(new ArrayList<>(batch)))) {
                batch.forEach(message -> noteSend("sent", message));
            }
        } catch (Exception error) {
            System.err.println("batch: " + error);
        }
    }

    /** Commits or rolls back at once, as the argument of the send says. */
    private static final class Decided implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object commit) {
            return (Boolean) commit ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            String key = message.getKeys();
            boolean rolledBack = Integer.parseInt(key.substring(key.lastIndexOf('-') + 1)) % 4 == 0;
            return rolledBack ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.COMMIT_MESSAGE;
        }
    }

    // ------------------------------------------------------------------------------------------ consumers

    private static void consume(String[] args) throws Exception {
        long limit = Long.parseLong(args[3]);
        long idleMs = Long.parseLong(args[4]);
        Map<String, DefaultMQPushConsumer> consumers = new TreeMap<>();
        Map<String, AtomicLong> acked = new TreeMap<>();
        AtomicLong last = new AtomicLong();
        for (int i = 5; i < args.length; i += 3) {
            String group = args[i];
            acked.putIfAbsent(group, new AtomicLong());
            consumers.computeIfAbsent(group, name -> consumer(args[1], name, acked.get(name), last))
                .subscribe(args[i + 1], args[i + 2]);
        }
        for (DefaultMQPushConsumer consumer : consumers.values()) {
            consumer.start();
        }
        last.set(System.currentTimeMillis());
        while (!consumers.isEmpty() && System.currentTimeMillis() - last.get() < idleMs) {
            for (String group : new ArrayList<>(consumers.keySet())) {
                if (acked.get(group).get() >= limit) {
                    consumers.remove(group).shutdown();
                }
            }
            Thread.sleep(20);
        }
        for (DefaultMQPushConsumer consumer : consumers.values()) {
            consumer.shutdown();
        }
    }

    private static DefaultMQPushConsumer consumer(String nameServer, String group, AtomicLong acked, AtomicLong last) {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setMqClientApiTimeout(TIMEOUT_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMaxReconsumeTimes(3);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        consumer.setPullThresholdForQueue(16);
        consumer.setPullBatchSize(8);
        consumer.setPersistConsumerOffsetInterval(500);
        consumer.setSuspendCurrentQueueTimeMillis(50);
        consumer.setAwaitTerminationMillisWhenShutdown(TIMEOUT_MS);
        if (group.contains("order")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                succeeds(group, messages.get(0), acked, last)
                    ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                succeeds(group, messages.get(0), acked, last)
                    ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
        return consumer;
    }

    private static boolean succeeds(String group, MessageExt message, AtomicLong acked, AtomicLong last) {
        last.set(System.currentTimeMillis());
        boolean success = message.getReconsumeTimes() >= Integer.parseInt(message.getUserProperty("fails"));
        boolean retry = message.getProperty(MessageConst.PROPERTY_RETRY_TOPIC) != null;
        note(success ? "acked" : "failed", group, message.getKeys(), retry ? "%RETRY%" + group : message.getTopic(),
            message.getQueueId(), message.getQueueOffset());
        if (success) {
            acked.incrementAndGet();
        }
        return success;
    }
}
