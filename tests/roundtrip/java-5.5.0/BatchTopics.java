import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.TreeMap;

import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * What a consumer sees of a topic with queue.type=BatchCQ: NAME_SERVER BROKER FILE. Sends batches and single messages to a new
 * topic and to an ordinary one, and writes each pulled message to FILE as a line of JSON.
 */
public final class BatchTopics {
    public static void main(String[] args) {
        try {
            run(args[0], args[1], args[2]);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    private static void run(String nameServer, String broker, String file) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(20_000L);
        admin.setNamesrvAddr(nameServer);
        admin.start();
        create(admin, broker, "Batched", "BatchCQ");
        create(admin, broker, "Plain", "SimpleCQ");
        DefaultMQProducer producer = new DefaultMQProducer("batch_producer");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(30_000);
        producer.setMqClientApiTimeout(30_000);
        producer.start();
        int number = 0;
        for (int size : new int[] {1, 2, 10, 3, 40, 10, 7, 1, 25, 5}) {
            for (String topic : new String[] {"Batched", "Plain"}) {
                List<Message> batch = new ArrayList<>();
                for (int i = 0; i < size; i++) {
                    batch.add(message(topic, number + i));
                }
                producer.send(batch, new MessageQueue(topic, "broker-a", size % 2));
            }
            number += size;
        }
        for (int i = 0; i < 6; i++) {
            try {
                producer.send(message("Batched", number + i), new MessageQueue("Batched", "broker-a", 0));
            } catch (Exception error) {
                System.err.println("single: " + error);
            }
            producer.send(message("Plain", number + i), new MessageQueue("Plain", "broker-a", 0));
        }
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("batch_consumer");
        consumer.setNamesrvAddr(nameServer);
        consumer.setMqClientApiTimeout(30_000);
        consumer.start();
        Thread.sleep(2000);
        try (PrintStream out = new PrintStream(file, "UTF-8")) {
            for (String topic : new String[] {"Batched", "Plain"}) {
                for (int queueId = 0; queueId < 2; queueId++) {
                    pullAll(consumer, new MessageQueue(topic, "broker-a", queueId), "*", out);
                    pullAll(consumer, new MessageQueue(topic, "broker-a", queueId), "TagA", out);
                }
            }
        }
        consumer.shutdown();
        producer.shutdown();
    }

    private static void create(DefaultMQAdminExt admin, String broker, String name, String type) throws Exception {
        TopicConfig topic = new TopicConfig(name);
        topic.setReadQueueNums(2);
        topic.setWriteQueueNums(2);
        HashMap<String, String> attributes = new HashMap<>();
        attributes.put("+queue.type", type);
        topic.setAttributes(attributes);
        admin.createAndUpdateTopicConfig(broker, topic);
    }

    private static Message message(String topic, int n) {
        Message message = new Message(topic, "Tag" + "ABC".charAt(n % 3), topic + "-" + n, ("body " + n + " \u00e9").getBytes(
            StandardCharsets.UTF_8));
        message.setFlag(n % 4);
        message.putUserProperty("n", Integer.toString(n));
        return message;
    }

    private static void pullAll(DefaultMQPullConsumer consumer, MessageQueue queue, String tags, PrintStream out)
            throws Exception {
        long offset = 0;
        while (true) {
            PullResult result = consumer.pull(queue, tags, offset, 32, 30_000);
            out.println("{\"kind\": \"pull\", \"queue\": \"" + queue.getTopic() + "/" + queue.getQueueId() + "\", \"tags\": \"" + tags
                + "\", \"offset\": " + offset + ", \"status\": \"" + result.getPullStatus() + "\", \"next\": "
                + result.getNextBeginOffset() + ", \"min\": " + result.getMinOffset() + ", \"max\": " + result.getMaxOffset()
                + "}");
            if (result.getMsgFoundList() != null) {
                for (MessageExt message : result.getMsgFoundList()) {
                    write(message, tags, out);
                }
            }
            if (result.getNextBeginOffset() <= offset) {
                return;
            }
            offset = result.getNextBeginOffset();
        }
    }

    private static void write(MessageExt message, String tags, PrintStream out) {
        StringBuilder properties = new StringBuilder();
        for (var entry : new TreeMap<>(message.getProperties()).entrySet()) {
            properties.append(properties.length() == 0 ? "" : ", ").append('"').append(entry.getKey()).append("\": \"")
                .append(entry.getValue()).append('"');
        }
        out.println("{\"kind\": \"message\", \"topic\": \"" + message.getTopic() + "\", \"queue_id\": " + message.getQueueId()
            + ", \"tags\": \"" + tags + "\", \"queue_offset\": " + message.getQueueOffset() + ", \"body\": \""
            + new String(message.getBody(), StandardCharsets.UTF_8) + "\", \"flag\": " + message.getFlag() + ", \"sys_flag\": "
            + message.getSysFlag() + ", \"born_timestamp\": " + message.getBornTimestamp() + ", \"store_timestamp\": "
            + message.getStoreTimestamp() + ", \"commit_log_offset\": " + message.getCommitLogOffset()
            + ", \"reconsume_times\": " + message.getReconsumeTimes() + ", \"msg_id\": \"" + message.getMsgId()
            + "\", \"properties\": {" + properties + "}}");
    }
}
